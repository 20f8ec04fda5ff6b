"""AutoGen: chats, streams and calls of functions."""

import asyncio
import json
import sys
from typing import Any, Literal

from autogen_core.models import (
    AssistantMessage,
    FunctionExecutionResult,
    FunctionExecutionResultMessage,
    SystemMessage,
    UserMessage,
)
from autogen_core.tools import FunctionTool
from autogen_ext.models.openai import OpenAIChatCompletionClient

from tests.server.client_programs import QUESTION


async def get_weather(city: Literal["Rome", "Paris"]) -> str:
    return f"20 degrees in {city}"


async def main() -> dict[str, Any]:
    info = dict.fromkeys(("function_calling", "json_output", "structured_output"), True)
    client = OpenAIChatCompletionClient(
        model="bundled",
        base_url=sys.argv[1],
        api_key="none",
        model_info=info | {"vision": False, "family": "unknown"},
        temperature=0,
    )
    tool = FunctionTool(get_weather, description="Get the weather of a city.")
    turns: list[Any] = [UserMessage(content=QUESTION, source="user")]
    asked = await client.create(turns)
    parts = [part async for part in client.create_stream(turns)]
    talk = [SystemMessage(content="Be brief."), *turns]
    talk.append(AssistantMessage(content=asked.content, source="assistant"))
    talk.append(UserMessage(content="And France?", source="someone_else"))
    talked = await client.create(talk)
    calling = await client.create(turns, tools=[tool], tool_choice="required")
    (call,) = calling.content
    result = FunctionExecutionResult(
        content="20 degrees", call_id=call.id, is_error=False, name=call.name
    )
    turns.append(AssistantMessage(content=calling.content, source="assistant"))
    turns.append(FunctionExecutionResultMessage(content=[result]))
    after = await client.create(turns, tools=[tool])
    await client.close()
    return {
        "asked": asked.content,
        "tokens": asked.usage.completion_tokens,
        "streamed": "".join(part for part in parts if isinstance(part, str)),
        "talked": talked.content,
        "called": [call.name, json.loads(call.arguments)["city"]],
        "after the call": after.finish_reason,
    }


print(json.dumps(asyncio.run(main())))
