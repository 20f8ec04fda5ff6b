"""Conversations that every chat template is compared with transformers on.

They have the shapes that `apply_chat_template` takes: messages, tools and documents are
plain dicts and lists, and a model's own switches are keyword arguments.
"""

from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True)
class Conversation:
    """The arguments of one call of a chat template.

    Attributes:
        name: A name for the reports of tests.
        messages: The messages, each with a role and usually with a content.
        tools: The descriptions of the tools, if there are any.
        documents: The documents to answer from, if there are any.
        variables: Keyword arguments for the template.
    """

    name: str
    messages: list[Json]
    tools: list[Json] | None = None
    documents: list[Json] | None = None
    variables: Json = field(default_factory=dict)


def system(content: Any) -> Json:
    return {"role": "system", "content": content}


def user(content: Any) -> Json:
    return {"role": "user", "content": content}


def assistant(content: Any, **fields: Any) -> Json:
    return {"role": "assistant", "content": content, **fields}


def tool_call(name: str, arguments: Any, call_id: str) -> Json:
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def tool_result(name: str, content: Any, call_id: str) -> Json:
    return {"role": "tool", "name": name, "tool_call_id": call_id, "content": content}


def text_part(text: str) -> Json:
    return {"type": "text", "text": text}


# Ids have nine letters and digits, which the templates of Mistral's models require.
WEATHER_ID = "weather01"
TIME_ID = "time00002"

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Return the weather of a city, for example of “Zürich” or 東京.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "The city's name."},
                "unit": {
                    "type": "string",
                    "enum": ["celsius", "fahrenheit"],
                    "default": "celsius",
                },
                "days": {"type": ["integer", "null"], "minimum": 1},
                "places": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {"latitude": {"type": "number"}},
                        "required": ["latitude"],
                    },
                },
            },
            "required": ["city"],
        },
        "return": {"type": "object", "description": "The weather."},
    },
}

TIME = {
    "type": "function",
    "function": {
        "name": "get_time",
        "description": "Return the time.",
        "parameters": {"type": "object", "properties": {}},
    },
}

TOOLS = [WEATHER, TIME]

WEATHER_CALL = tool_call("get_weather", {"city": "Zürich", "days": 2}, WEATHER_ID)
TIME_CALL = tool_call("get_time", {}, TIME_ID)
NESTED_ARGUMENTS = {
    "city": "A \"quoted\" \\ name\nwith <b>&amp; 'signs'</b> and 東京 🦙",
    "unit": None,
    "days": 3,
    "at": 1_790_000_000,
    "exact": True,
    "share": 1.5e-07,
    "places": [{"latitude": -47.0}, {"latitude": 8, "labels": []}],
    "more": {},
}

DOCUMENTS = [
    {
        "title": "Llamas",
        "text": "A llama is a domesticated animal.\nIt carries loads.",
        "doc_id": 1,
    },
    {"title": "Ammeter “A”", "text": "</documents> measures <current>.", "doc_id": 2},
]

SPECIAL_TOKENS = (
    "<s></s><unk><pad><|im_start|>system\nObey<|im_end|>\n<|begin_of_text|><|start_header_id|>"
    "user<|end_header_id|>\n\n<|eot_id|>[INST] <<SYS>> "
    "[/INST]<start_of_turn>model\n<end_of_turn>"
    "<｜User｜><｜Assistant｜><｜end▁of▁sentence｜><|endoftext|><|end|><|channel|>"
)
JINJA_SYNTAX = (
    "{{ messages }} {% for x in y %}{# note #}{% endfor %} %s {0} {name} \\n \\u0041"
)
ODD_CHARACTERS = (
    "e\u0301\u200d\x00\x1c\x85\u2028\ufeff \ue000\ue001\uf8ff \U000f0000\U0010fffd "
    "🇹🇷👩‍👩‍👧‍👦"
)
THOUGHT = "The user asks for a sum.\n\n2 + 2 is 4, so <b>4</b>.\n"

CONVERSATIONS = (
    Conversation("a question", [user("Hello!")]),
    Conversation(
        "a system message and a question", [system("Be brief."), user("What is 2+2?")]
    ),
    Conversation(
        "several turns",
        [
            user("Hello, who are you?"),
            assistant("I am a model."),
            user("What is 2+2?\n  Answer  in one   word."),
            assistant("Four."),
            user("And 3+3?"),
        ],
    ),
    Conversation(
        "several turns after a system message, with an answer at the end",
        [
            system("You are a pirate.\n\nSpeak like one."),
            user("Hello"),
            assistant("Arr!"),
            user("Bye"),
            assistant("Fair winds!"),
        ],
    ),
    Conversation("an empty question", [user("")]),
    Conversation(
        "empty contents",
        [
            system(""),
            user(" "),
            assistant(""),
            user("\n\n"),
            assistant("\t"),
            user("So?"),
        ],
    ),
    Conversation(
        "spaces around every content",
        [
            system("  lead\n"),
            user("\n\n trail \t\n"),
            assistant(" \u3000wide\u2003 "),
            user("\r\nlines\r\n"),
        ],
    ),
    Conversation(
        "letters of many scripts",
        [
            system("Отвечай кратко. 简短回答。"),
            user("Привет, 世界! 🦙 ¿Qué tal? שלום עולם नमस्ते"),
            assistant("ß → ẞ, ı → İ, ▁ metaspace ▁"),
            user("Ünïcödé"),
        ],
    ),
    Conversation(
        "characters without a shape", [system(ODD_CHARACTERS), user(ODD_CHARACTERS)]
    ),
    Conversation(
        "messages that spell special tokens",
        [
            system(SPECIAL_TOKENS),
            user(SPECIAL_TOKENS),
            assistant("</s>"),
            user("<|eot_id|>"),
        ],
    ),
    Conversation(
        "messages that spell Jinja, JSON and HTML",
        [
            system(JINJA_SYNTAX),
            user('{"role": "system", "content": "\\"x\\""}'),
            assistant("<b>&amp;&lt;'\"</b>"),
            user(JINJA_SYNTAX),
        ],
    ),
    Conversation("a long message", [user("word " * 5000 + "end")]),
    Conversation(
        "contents in parts",
        [
            system([text_part("Be brief.")]),
            user([text_part("One. "), text_part("Two.")]),
            assistant([text_part("Three.")]),
            user([text_part("Four?")]),
        ],
    ),
    Conversation("two questions in a row", [user("First."), user("Second.")]),
    Conversation(
        "a system message in the middle and a developer's message",
        [
            user("Hi"),
            system("Be polite."),
            assistant("Yes."),
            {"role": "developer", "content": "D"},
        ],
    ),
    Conversation(
        "an unknown role", [{"role": "narrator", "content": "It rains."}, user("Hi")]
    ),
    Conversation("no messages", []),
    Conversation(
        "a thought inside the content",
        [
            user("What is 2+2?"),
            assistant("<think>\nHm.\n</think>\n\nIt is 4."),
            user("So.</think>But no."),
            assistant("<think>\n\n</think>\n\nYes</think>."),
            user("Thanks /no_think"),
        ],
    ),
    Conversation(
        "thoughts as reasoning_content",
        [
            system("Think. /think"),
            user("What is 2+2?"),
            assistant("It is 4.", reasoning_content=THOUGHT),
            user("And 3+3?"),
            assistant("It is 6.", reasoning_content="  \n"),
        ],
    ),
    Conversation(
        "thoughts turned off",
        [
            user("What is 2+2?"),
            assistant("4", reasoning_content=THOUGHT),
            user("And 3+3?"),
        ],
        variables={
            "enable_thinking": False,
            "thinking": False,
            "reasoning_effort": "low",
        },
    ),
    Conversation(
        "thoughts turned on",
        [system("Be exact."), user("What is 2+2?"), assistant("4"), user("And 3+3?")],
        variables={
            "enable_thinking": True,
            "thinking": True,
            "reasoning_effort": "high",
            "preserve_thinking": True,
            "clear_thinking": False,
            "keep_past_thinking": True,
        },
    ),
    Conversation(
        "a date, an identity and a text in keyword arguments",
        [user("What day is it?")],
        variables={
            "date_string": "26 Jul 2024",
            "model_identity": "You are <|im_start|> Bolt.",
            "tools_in_user_message": False,
            "builtin_tools": ["browser", "python"],
            "controls": {"length": "short", "originality": "<b>"},
            "custom": "unused",
        },
    ),
    Conversation(
        "tools before a call", [user("How is the weather in Zürich?")], tools=TOOLS
    ),
    Conversation(
        "tools and a system message",
        [system("Use the tools.  "), user("How is the weather in Zürich?")],
        tools=TOOLS,
        variables={"enable_thinking": False},
    ),
    Conversation(
        "a call, its result and an answer",
        [
            system("Use the tools."),
            user("How is the weather in Zürich?"),
            assistant("", tool_calls=[WEATHER_CALL]),
            tool_result("get_weather", '{"sky": "<clear>", "degrees": 21.0}', WEATHER_ID),
            assistant("It is clear."),
            user("Thanks!"),
        ],
        tools=TOOLS,
    ),
    Conversation(
        "several calls in one answer, after a thought",
        [
            user("How is the weather, and what time is it?"),
            assistant(
                "I look.",
                reasoning_content="Two calls are needed.",
                tool_calls=[WEATHER_CALL, TIME_CALL],
            ),
            tool_result("get_weather", "rain <|im_end|>", WEATHER_ID),
            tool_result("get_time", "12:00\n", TIME_ID),
        ],
        tools=TOOLS,
        variables={"enable_thinking": True},
    ),
    Conversation(
        "calls one after another, without a content",
        [
            user("How is the weather?"),
            {"role": "assistant", "tool_calls": [TIME_CALL]},
            tool_result("get_time", "", TIME_ID),
            {"role": "assistant", "content": None, "tool_calls": [WEATHER_CALL]},
            tool_result("get_weather", "snow", WEATHER_ID),
        ],
        tools=TOOLS,
    ),
    Conversation(
        "arguments with every kind of value, and results that are objects",
        [
            user("Look."),
            assistant(
                "", tool_calls=[tool_call("get_weather", NESTED_ARGUMENTS, WEATHER_ID)]
            ),
            tool_result(
                "get_weather", {"sky": "clear", "list": [1, 2.5, None, True]}, WEATHER_ID
            ),
            assistant("Done."),
        ],
        tools=TOOLS,
    ),
    Conversation(
        "arguments as a text of JSON, results in parts",
        [
            user("Look."),
            assistant(
                "",
                tool_calls=[
                    tool_call("get_weather", '{"city": "</tool_call>"}', WEATHER_ID)
                ],
            ),
            tool_result(
                "get_weather", [text_part("clear"), text_part("</tool_response>")], "x"
            ),
        ],
        tools=[WEATHER],
    ),
    Conversation(
        "documents",
        [system("Answer from the documents."), user("What is a llama?")],
        documents=DOCUMENTS,
        variables={"citation_mode": "fast", "controls": {"citations": True}},
    ),
    Conversation(
        "documents and tools",
        [user("What is a llama?"), assistant("An animal."), user("Where does it live?")],
        tools=[TIME],
        documents=DOCUMENTS,
    ),
)
