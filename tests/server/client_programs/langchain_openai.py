"""LangChain: chats, streams, calls of functions, structures and completions."""

import asyncio
import json
import sys

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI, OpenAI

from tests.server.client_programs import CITY, QUESTION, WEATHER

server = {
    "model": "bundled",
    "base_url": sys.argv[1],
    "api_key": "none",
    "temperature": 0,
}
chat = ChatOpenAI(**server)
asked = chat.invoke(QUESTION)
tools = [{"type": "function", "function": WEATHER}]
turns = [HumanMessage(QUESTION)]
calling = chat.bind_tools(tools, tool_choice="required").invoke(turns)
(call,) = calling.tool_calls
turns += [calling, ToolMessage("20 degrees", tool_call_id=call["id"])]
brief = [("system", "Be brief."), ("user", QUESTION)]
results = {
    "asked": asked.content,
    "tokens": asked.usage_metadata["output_tokens"],
    "streamed": "".join(chunk.content for chunk in chat.stream(QUESTION)),
    "waited": asyncio.run(chat.ainvoke(QUESTION)).content,
    "brief": chat.invoke(brief).content,
    "called": [call["name"], call["args"]["city"]],
    "after the call": chat.bind_tools(tools)
    .invoke(turns)
    .response_metadata["finish_reason"],
    "by a schema": chat.with_structured_output(CITY, method="json_schema").invoke(
        QUESTION
    ),
    "by a function": chat.with_structured_output(CITY, method="function_calling").invoke(
        QUESTION
    ),
    "completed": OpenAI(**server).invoke("The capital of Italy is"),
}
print(json.dumps(results))
