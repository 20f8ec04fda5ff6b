"""LiteLLM: chats, streams, calls of functions and structures."""

import asyncio
import json
import sys

import litellm

from tests.server.client_programs import CITY, QUESTION, WEATHER

server = {
    "model": "openai/bundled",
    "api_base": sys.argv[1],
    "api_key": "none",
    "temperature": 0,
}
turns = [{"role": "user", "content": QUESTION}]
tools = [{"type": "function", "function": WEATHER}]
form = {"type": "json_schema", "json_schema": {"name": "City", "schema": CITY}}
asked = litellm.completion(**server, messages=turns)
stream = litellm.completion(**server, messages=turns, stream=True)
streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
waited = asyncio.run(litellm.acompletion(**server, messages=turns))
structured = litellm.completion(**server, messages=turns, response_format=form)
calling = litellm.completion(
    **server, messages=turns, tools=tools, tool_choice="required"
)
message = calling.choices[0].message
(call,) = message.tool_calls
turns += [message, {"role": "tool", "tool_call_id": call.id, "content": "20 degrees"}]
after = litellm.completion(**server, messages=turns, tools=tools)
results = {
    "asked": asked.choices[0].message.content,
    "tokens": asked.usage.completion_tokens,
    "streamed": streamed,
    "waited": waited.choices[0].message.content,
    "by a schema": json.loads(structured.choices[0].message.content),
    "called": [call.function.name, json.loads(call.function.arguments)["city"]],
    "after the call": after.choices[0].finish_reason,
}
print(json.dumps(results))
