"""Pydantic AI: chats, streams, structures and calls of functions."""

import asyncio
import json
import sys
from typing import Any, Literal

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.direct import model_request
from pydantic_ai.messages import ModelRequest, ToolCallPart, ToolReturnPart
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.tools import ToolDefinition

from tests.server.client_programs import CITY, QUESTION


class City(BaseModel):
    city: Literal["Rome", "Paris"]


async def main() -> dict[str, Any]:
    provider = OpenAIProvider(base_url=sys.argv[1], api_key="none")
    model = OpenAIChatModel("bundled", provider=provider)
    settings: Any = {"temperature": 0, "max_tokens": 200}
    agent = Agent(model, model_settings=settings)
    asked = await agent.run(QUESTION)
    async with agent.run_stream(QUESTION) as stream:
        streamed = await stream.get_output()
    again = await agent.run("And France?", message_history=asked.all_messages())
    structured = {}
    for form in (NativeOutput, ToolOutput):
        answer = await Agent(model, output_type=form(City), model_settings=settings).run(
            QUESTION
        )
        structured[form.__name__] = answer.output.model_dump()
    tool = ToolDefinition(name="get_weather", parameters_json_schema=CITY)
    offered = ModelRequestParameters(function_tools=[tool])
    turns: list[Any] = [ModelRequest.user_text_prompt(QUESTION)]
    must = settings | {"tool_choice": "required"}
    calling = await model_request(
        model, turns, model_settings=must, model_request_parameters=offered
    )
    call = next(part for part in calling.parts if isinstance(part, ToolCallPart))
    result = ToolReturnPart(call.tool_name, "20 degrees", call.tool_call_id)
    turns += [calling, ModelRequest(parts=[result])]
    after = await model_request(
        model, turns, model_settings=settings, model_request_parameters=offered
    )
    return {
        "asked": asked.output,
        "tokens": asked.usage.output_tokens,
        "streamed": streamed,
        "again": again.output,
        "by a schema": structured["NativeOutput"],
        "by a function": structured["ToolOutput"],
        "called": [call.tool_name, call.args_as_dict()["city"]],
        "after the call": after.finish_reason,
    }


print(json.dumps(asyncio.run(main())))
