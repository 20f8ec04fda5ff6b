r"""Chat templates to compare with. They are run by transformers in tests, and never by
the engine.

Copied as published, with the licence of the model they come with: TINYLLAMA (Apache-2.0,
TinyLlama/TinyLlama-1.1B-Chat-v1.0), SMOLLM2 (Apache-2.0,
HuggingFaceTB/SmolLM2-1.7B-Instruct), SMOLLM (Apache-2.0,
HuggingFaceTB/SmolLM-1.7B-Instruct), MISTRAL_V1 (Apache-2.0,
mistralai/Mistral-7B-Instruct-v0.2 since 2024) and the two of 2023 (Apache-2.0,
mistralai/Mistral-7B-Instruct-v0.1 and -v0.2, first revisions). MISTRAL_V3 (Apache-2.0,
mistralai/Mistral-7B-Instruct-v0.3) and DEEPSEEK_R1 (MIT,
deepseek-ai/DeepSeek-R1-Distill-Llama-8B) are cut: what they say of tools is left out.

Written for these tests, with the same results, after the rules that Meta publishes:
LLAMA2 (meta-llama/Llama-2-7b-chat-hf: each question with its own begin of text, contents
stripped, the system message in the first question), LLAMA3
(meta-llama/Meta-Llama-3-8B-Instruct: headers, stripped contents) and LLAMA3_1
(meta-llama/Llama-3.1-8B-Instruct: two lines of dates open the system message, which is
always there; tools in the first question). So are, after the templates of
Qwen/Qwen2-7B-Instruct, Qwen/Qwen2.5-7B-Instruct, Qwen/Qwen3-0.6B,
HuggingFaceTB/SmolLM3-3B, ibm-granite/granite-3.3-2b-instruct,
ibm-granite/granite-3.0-8b-instruct and allenai/OLMo-2-1124-7B-Instruct: QWEN2, QWEN25,
QWEN3, SMOLLM3, GRANITE, GRANITE_3_0 and OLMO2, the last four without what they say of
tools and documents. That of SmolLM3 was compared with the copy in the tests of
huggingface/swift-jinja, that of Granite 3.0 with those in llama.cpp
(tests/test-chat-template.cpp) and langchain-ibm.
"""

LLAMA3 = r"""
{%- for message in messages %}
{%- if loop.first %}{{ bos_token }}{% endif %}
{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}
{{- message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}
"""

LLAMA3_1_DATES = "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n"

LLAMA3_1 = r"""
{%- macro turn(role, text) %}
{{- '<|start_header_id|>' + role + '<|end_header_id|>\n\n' + text + '<|eot_id|>' }}
{%- endmacro %}
{%- set system = messages[0]['content'] | trim if messages[0]['role'] == 'system' else '' %}
{%- set rest = messages[1:] if messages[0]['role'] == 'system' else messages %}
{%- set dates = 'Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n' %}
{{- bos_token + turn('system', ('Environment: ipython\n' if tools else '') + dates + system) }}
{%- if tools %}
    {%- set described = namespace(text='') %}
    {%- for tool in tools %}
        {%- set described.text = described.text + tool | tojson(indent=4) + '\n\n' %}
    {%- endfor %}
    {{- turn('user', 'INTRODUCTION' + described.text + rest[0]['content'] | trim) }}
    {%- set rest = rest[1:] %}
{%- endif %}
{%- for message in rest %}
    {%- if message.role == 'tool' %}
        {{- turn('ipython', message['content'] | tojson) }}
    {%- elif message.tool_calls %}
        {%- set call = message.tool_calls[0].function %}
        {%- set text = call.arguments | tojson %}
        {{- turn('assistant', '{"name": "' + call.name + '", "parameters": ' + text + '}') }}
    {%- else %}
        {{- turn(message['role'], message['content'] | trim) }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}
""".replace(
    "INTRODUCTION",
    "Given the following functions, please respond with a JSON for a function call with its proper "
    r"arguments that best answers the given prompt.\n\nRespond in the format "
    '{"name": function name, "parameters": dictionary of argument name and its value}.'
    r"Do not use variables.\n\n",
)

LLAMA2 = r"""
{%- set has_system = messages[0]['role'] == 'system' %}
{%- set frame = '<<SYS>>\n' + messages[0]['content'] + '\n<</SYS>>\n\n' if has_system else '' %}
{%- for message in (messages[1:] if has_system else messages) %}
{%- set content = (frame if loop.first else '') + message['content'] %}
{%- if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}
{%- else %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}
{%- endfor %}
"""

SMOLLM = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + "
    "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

CHATML_BOS = "{{bos_token}}" + SMOLLM

SMOLLM2 = SMOLLM.replace(
    "{{'<|im_start|>' + m",
    "{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou "
    "are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% "
    "endif %}"
    "{{'<|im_start|>' + m",
)
QWEN2 = SMOLLM2.replace(
    "AI assistant named SmolLM, trained by Hugging Face", "assistant."
)

QWEN_TOOLS = r"""
{%- macro described(tools) %}
    {{- '# Tools\n\nYou may call one or more functions to assist with the user query.\n\n' }}
    {{- 'You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n' }}
    {%- for tool in tools %}{{ tool | tojson + '\n' }}{% endfor %}
    {{- '</tools>\n\nFor each function call, return a json object with function name and ' }}
    {{- 'arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n{"name": ' }}
    {{- '<function-name>, "arguments": <args-json-object>}\n</tool_call>' }}
{%- endmacro %}
{%- macro calls(message, content) %}
    {%- for call in message.tool_calls or [] %}
        {%- set name, arguments = call.function.name, call.function.arguments | tojson %}
        {{- '\n' if content or not loop.first }}
        {{- '<tool_call>\n{"name": "' + name + '", "arguments": ' + arguments + '}\n</tool_call>' }}
    {%- endfor %}
{%- endmacro %}
{%- macro result(before, message, after) %}
    {%- if before.role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
    {{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}
    {%- if after.role != 'tool' %}{{ '<|im_end|>\n' }}{% endif %}
{%- endmacro %}
"""

QWEN25 = (
    QWEN_TOOLS
    + r"""
{%- if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] + '<|im_end|>\n' %}
{%- else %}{% set system = 'SYSTEM<|im_end|>\n' %}{% endif %}
{%- if tools %}
    {%- set system = system[:-11] + '\n\n' + described(tools) + '<|im_end|>\n' %}
{%- endif %}
{{- '<|im_start|>system\n' + system }}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {{- result(loop.previtem or {}, message, loop.nextitem or {}) }}
    {%- elif message.tool_calls %}
        {{- '<|im_start|>assistant\n' + message.content + calls(message, message.content) }}
        {{- '<|im_end|>\n' }}
    {%- elif message.role != "system" or not loop.first %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
""".replace(
        "SYSTEM", "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
    )
)

QWEN3 = (
    QWEN_TOOLS
    + r"""
{%- set ns = namespace(last_query_index=messages|length - 1, found=false) %}
{%- for message in messages[::-1] %}
    {%- if message.role == "user" and not ns.found
           and not (message.content.startswith('<tool_response>')
                    and message.content.endswith('</tool_response>')) %}
        {%- set ns.found = true %}
        {%- set ns.last_query_index = messages|length - 1 - loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- set has_system = messages[0].role == 'system' %}
{%- if tools %}
    {{- '<|im_start|>system\n' + (messages[0].content + '\n\n' if has_system else '') }}
    {{- described(tools) + '<|im_end|>\n' }}
{%- elif has_system %}
    {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {{- result(loop.previtem or {}, message, loop.nextitem or {}) }}
    {%- elif message.role == 'user' or message.role == 'system' and not loop.first %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- elif message.role == 'assistant' %}
        {%- set content = message.content %}
        {%- set thought = '' %}
        {%- if '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\n').split('<think>')[-1] %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {%- set thought = thought.strip('\n') %}
        {{- '<|im_start|>assistant\n' }}
        {%- if loop.index0 > ns.last_query_index and (loop.last or thought) %}
            {{- '<think>\n' + thought + '\n</think>\n\n' + content.lstrip('\n') }}
        {%- else %}
            {{- content }}
        {%- endif %}
        {{- calls(message, content) + '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}
"""
)

GRANITE = r"""
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set system_message = "DATES" + strftime_now('%B %d, %Y') + SYSTEM %}
    {%- set loop_messages = messages %}
{%- endif %}
{{- '<|start_of_role|>system<|end_of_role|>' + system_message + '<|end_of_text|>\n' }}
{%- for message in loop_messages %}
    {{- '<|start_of_role|>' + message['role'] + '<|end_of_role|>' + message['content'] }}
    {{- '<|end_of_text|>\n' }}
    {%- if loop.last and add_generation_prompt %}
        {{- '<|start_of_role|>assistant<|end_of_role|>' }}
    {%- endif %}
{%- endfor %}
""".replace("DATES", r"Knowledge Cutoff Date: April 2024.\nToday's Date: ").replace(
    "SYSTEM", r'".\nYou are Granite, developed by IBM. You are a helpful AI assistant."'
)

GRANITE_3_0 = r"""
{%- for message in messages %}
    {%- if message['role'] == 'system' %}
    {{- '<|start_of_role|>system<|end_of_role|>' + message['content'] + '<|end_of_text|>\n' }}
    {%- elif message['role'] == 'user' %}
    {{- '<|start_of_role|>user<|end_of_role|>' + message['content'] + '<|end_of_text|>\n' }}
    {%- elif message['role'] == 'assistant' %}
    {{- '<|start_of_role|>assistant<|end_of_role|>'  + message['content'] + '<|end_of_text|>\n' }}
    {%- endif %}
    {%- if loop.last and add_generation_prompt %}
    {{- '<|start_of_role|>assistant<|end_of_role|>' }}
    {%- endif %}
{%- endfor %}
"""

SMOLLM3 = r"""
{%- set ns = namespace(system='', thinks=enable_thinking is not defined or enable_thinking) %}
{%- if messages[0].role == "system" %}
    {%- set ns.system = messages[0].content %}
    {%- if "/no_think" in ns.system %}{% set ns.thinks = false %}
    {%- elif "/think" in ns.system %}{% set ns.thinks = true %}{% endif %}
{%- endif %}
{%- set reasoning_mode = "/think" if ns.thinks else "/no_think" %}
{%- set custom = ns.system.replace("/no_think", "").replace("/think", "").rstrip() %}
{%- set answer = "" if ns.thinks else "<think>\n\n</think>\n" %}
{{- "<|im_start|>system\n" }}
{%- if "/system_override" in ns.system %}
  {{- custom.replace("/system_override", "").rstrip() + "<|im_end|>\n" }}
{%- else %}
  {{- "## Metadata\n\nKnowledge Cutoff Date: June 2025\n" }}
  {{- "Today Date: " + strftime_now("%d %B %Y") + "\n" }}
  {{- "Reasoning Mode: " + reasoning_mode + "\n\n## Custom Instructions\n\n" }}
  {{- custom or ("OWN" if ns.thinks else "FIRST.") }}
  {{- "\n\n" }}
  {%- if xml_tools or python_tools -%}
    {{- "\n\n" -}}
    {{- "<|im_end|>\n" -}}
  {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == "user" %}{{ "<|im_start|>user\n" + message.content + "<|im_end|>\n" }}
    {%- elif message.role == "assistant" %}
        {{- "<|im_start|>assistant\n" + answer + message.content.lstrip("\n") + "<|im_end|>\n" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ "<|im_start|>assistant\n" + answer }}{% endif %}
""".replace(
    "OWN",
    "FIRST. Your role as an assistant involves thoroughly exploring questions through a "
    "systematic thinking process before providing the final precise and accurate "
    "solutions. This requires engaging in a comprehensive cycle of analysis, "
    "summarizing, exploration, reassessment, reflection, backtracking, and iteration to "
    "develop well-considered thinking process. Please structure your response into two "
    "main sections: Thought and Solution using the specified format: <think> Thought "
    "section </think> Solution section. In the Thought section, detail your reasoning "
    "process in steps. Each step should include detailed considerations such as "
    "analysing questions, summarizing relevant findings, brainstorming new ideas, "
    "verifying the accuracy of the current steps, refining any errors, and revisiting "
    "previous steps. In the Solution section, based on various attempts, explorations, "
    "and reflections from the Thought section, systematically present the final solution "
    "that you deem correct. The Solution section should be logical, accurate, and "
    "concise and detail necessary steps needed to reach the conclusion.",
).replace("FIRST", "You are a helpful AI assistant named SmolLM, trained by Hugging Face")

OLMO2 = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ '<|system|>\n' + message['content'] + '\n' }}"
    "{% elif message['role'] == 'user' %}{{ '<|user|>\n' + message['content'] + '\n' }}"
    "{% elif not loop.last %}"
    "{{ '<|assistant|>\n'  + message['content'] + eos_token + '\n' }}"
    "{% else %}{{ '<|assistant|>\n'  + message['content'] + eos_token }}{% endif %}"
    "{% if loop.last and add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}{% "
    "endfor %}"
)

TINYLLAMA = """{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>\n' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>\n' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>\n'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}"""

MISTRAL_V1 = r"""{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}

{{- bos_token }}
{%- for message in loop_messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must alternate') }}
    {%- endif %}
    {%- if message['role'] == 'user' %}
        {%- if loop.first and system_message is defined %}
            {{- ' [INST] ' + system_message + '\n\n' + message['content'] + ' [/INST]' }}
        {%- else %}
            {{- ' [INST] ' + message['content'] + ' [/INST]' }}
        {%- endif %}
    {%- elif message['role'] == 'assistant' %}
        {{- ' ' + message['content'] + eos_token}}
    {%- endif %}
{%- endfor %}
"""

MISTRAL_V3 = r"""{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}

{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\n\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- endif %}
{%- endfor %}
"""

MISTRAL_V02_2023 = (
    "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != "
    "(loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token}}{% "
    "endif %}"
    "{% endfor %}"
)

MISTRAL_V01_2023 = MISTRAL_V02_2023.replace("eos_token}}", "eos_token + ' ' }}")

DEEPSEEK_R1 = (
    "{% set ns = namespace(system_prompt='') %}{%- for message in messages %}"
    "{%- if message['role'] == 'system' %}{% set ns.system_prompt = message['content'] %}"
    "{%- endif %}{%- endfor %}{{bos_token}}{{ns.system_prompt}}{%- for message in "
    "messages %}"
    "{%- if message['role'] == 'user' %}{{'<｜User｜>' + message['content']}}{%- endif %}"
    "{%- if message['role'] == 'assistant' and message['content'] is not none %}"
    "{% set content = message['content'] %}{% if '</think>' in content %}"
    "{% set content = content.split('</think>')[-1] %}{% endif %}"
    "{{'<｜Assistant｜>' + content + '<｜end▁of▁sentence｜>'}}{%- endif %}{%- endfor -%}"
    "{% if add_generation_prompt %}{{'<｜Assistant｜><think>\\n'}}{% endif %}"
)

DEEPSEEK_R1_2025_01 = DEEPSEEK_R1.replace("<think>\\n", "")

# By the name of the format that writes the same.
PUBLISHED = {
    "llama3": LLAMA3,
    "llama2": LLAMA2,
    "chatml": SMOLLM,
    "chatml-bos": CHATML_BOS,
    "smollm2": SMOLLM2,
    "qwen2": QWEN2,
    "qwen2.5": QWEN25,
    "qwen3": QWEN3,
    "smollm3": SMOLLM3,
    "granite": GRANITE,
    "granite-3.0": GRANITE_3_0,
    "olmo2": OLMO2,
    "zephyr": TINYLLAMA,
    "mistral-v1": MISTRAL_V1,
    "mistral-v3": MISTRAL_V3,
    "mistral-v0.1-2023": MISTRAL_V01_2023,
    "mistral-v0.2-2023": MISTRAL_V02_2023,
    "deepseek-r1": DEEPSEEK_R1,
    "deepseek-r1-2025-01": DEEPSEEK_R1_2025_01,
}
