"""One call, made with each SDK, and the parts of the answer that a user of the SDK sees."""

from __future__ import annotations

from typing import Any, NamedTuple

import anthropic
import openai
from google import genai
from google.genai import types as gemini

KEY = "sk-test"
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOL = "get_weather"


class Said(NamedTuple):
    """What an SDK makes of an answer."""

    text: str
    tools: tuple[tuple[str, str, Any], ...]
    """Id, name and arguments."""
    tokens: tuple[int, int]
    ended: str
    reasoning: str = ""
    model: str = ""


class Refused(Exception):
    """An error of an SDK, as the name of its type and its status."""


class Ask(NamedTuple):
    """A call, in terms that belong to no SDK."""

    model: str
    prompt: str
    stream: bool = False
    system: str | None = None
    tools: bool = False
    schema: bool = False
    thinks: bool = False
    result: tuple[Said, str] | None = None
    """The answer that called a tool, and the result of the tool."""


async def say_openai(url: str, ask: Ask) -> Said:
    messages: list[Any] = [{"role": "user", "content": ask.prompt}]
    if ask.system is not None:
        messages.insert(0, {"role": "system", "content": ask.system})
    if ask.result is not None:
        said, result = ask.result
        calls = [
            {"id": id, "type": "function", "function": {"name": name, "arguments": given}}
            for id, name, given in said.tools
        ]
        messages.append({"role": "assistant", "content": said.text or None, "tool_calls": calls})
        messages += [
            {"role": "tool", "tool_call_id": call["id"], "content": result} for call in calls
        ]
    fields: dict[str, Any] = {"model": ask.model, "messages": messages}
    if ask.tools:
        function = {"name": TOOL, "description": "Weather", "parameters": SCHEMA}
        fields["tools"] = [{"type": "function", "function": function}]
    if ask.schema:
        schema = {"name": "trip", "schema": SCHEMA, "strict": True}
        fields["response_format"] = {"type": "json_schema", "json_schema": schema}
    if ask.thinks:
        fields["reasoning_effort"] = "high"
    async with openai.AsyncOpenAI(base_url=url + "/v1", api_key=KEY, max_retries=0) as client:
        create = client.chat.completions.create
        try:
            if not ask.stream:
                completion = await create(**fields)
            else:
                async with client.chat.completions.stream(
                    **fields,
                    stream_options={"include_usage": True},
                ) as stream:
                    completion = await stream.get_final_completion()
        except openai.APIStatusError as error:
            raise Refused(type(error).__name__, error.status_code) from error
    choice, usage = completion.choices[0], completion.usage
    message = choice.message
    return Said(
        message.content or "",
        tuple(
            (call.id, call.function.name, call.function.arguments)
            for call in message.tool_calls or ()
        ),
        (usage.prompt_tokens, usage.completion_tokens),
        choice.finish_reason,
        getattr(message, "reasoning_content", None) or "",
        completion.model,
    )


async def say_responses(url: str, ask: Ask) -> Said:
    items: list[Any] = [{"role": "user", "content": ask.prompt}]
    if ask.result is not None:
        said, result = ask.result
        for id, name, given in said.tools:
            called = {"call_id": id, "name": name, "arguments": given}
            items.append({"type": "function_call", **called})
            items.append({"type": "function_call_output", "call_id": id, "output": result})
    fields: dict[str, Any] = {"model": ask.model, "input": items if ask.result else ask.prompt}
    if ask.system is not None:
        fields["instructions"] = ask.system
    if ask.tools:
        function = {"name": TOOL, "description": "Weather", "parameters": SCHEMA}
        fields["tools"] = [{"type": "function", "strict": True, **function}]
    if ask.schema:
        schema = {"name": "trip", "schema": SCHEMA, "strict": True}
        fields["text"] = {"format": {"type": "json_schema", **schema}}
    if ask.thinks:
        fields["reasoning"] = {"effort": "high", "summary": "auto"}
    async with openai.AsyncOpenAI(base_url=url + "/v1", api_key=KEY, max_retries=0) as client:
        try:
            if not ask.stream:
                response: Any = await client.responses.create(**fields)
            else:
                async with client.responses.stream(**fields) as stream:
                    response = await stream.get_final_response()
        except openai.APIStatusError as error:
            raise Refused(type(error).__name__, error.status_code) from error
    calls = [item for item in response.output if item.type == "function_call"]
    thoughts = [item for item in response.output if item.type == "reasoning"]
    return Said(
        response.output_text,
        tuple((call.call_id, call.name, call.arguments) for call in calls),
        (response.usage.input_tokens, response.usage.output_tokens),
        response.status,
        "".join(part.text for thought in thoughts for part in thought.summary),
        response.model,
    )


async def say_anthropic(url: str, ask: Ask) -> Said:
    messages: list[Any] = [{"role": "user", "content": ask.prompt}]
    if ask.result is not None:
        said, result = ask.result
        used = [
            {"type": "tool_use", "id": id, "name": name, "input": given}
            for id, name, given in said.tools
        ]
        got = [{"type": "tool_result", "tool_use_id": u["id"], "content": result} for u in used]
        messages += [{"role": "assistant", "content": used}, {"role": "user", "content": got}]
    fields: dict[str, Any] = {"model": ask.model, "messages": messages, "max_tokens": 4000}
    if ask.system is not None:
        fields["system"] = ask.system
    if ask.tools:
        fields["tools"] = [{"name": TOOL, "description": "Weather", "input_schema": SCHEMA}]
    if ask.schema:
        fields["output_config"] = {"format": {"type": "json_schema", "schema": SCHEMA}}
    if ask.thinks:
        fields["thinking"] = {"type": "enabled", "budget_tokens": 2000}
    async with anthropic.AsyncAnthropic(base_url=url, api_key=KEY, max_retries=0) as client:
        try:
            if not ask.stream:
                message = await client.messages.create(**fields)
            else:
                async with client.messages.stream(**fields) as stream:
                    message = await stream.get_final_message()
        except anthropic.APIStatusError as error:
            raise Refused(type(error).__name__, error.status_code) from error
    return Said(
        "".join(block.text for block in message.content if block.type == "text"),
        tuple(
            (block.id, block.name, block.input)
            for block in message.content
            if block.type == "tool_use"
        ),
        (message.usage.input_tokens, message.usage.output_tokens),
        str(message.stop_reason),
        "".join(block.thinking for block in message.content if block.type == "thinking"),
        message.model,
    )


async def say_gemini(url: str, ask: Ask) -> Said:
    contents: list[Any] = [gemini.UserContent(ask.prompt)]
    if ask.result is not None:
        said, result = ask.result
        calls = [
            gemini.Part.from_function_call(name=name, args=given) for _, name, given in said.tools
        ]
        got = [
            gemini.Part.from_function_response(name=name, response={"result": result})
            for _, name, _ in said.tools
        ]
        contents += [gemini.ModelContent(calls), gemini.UserContent(got)]
    fields: dict[str, Any] = {"system_instruction": ask.system}
    if ask.tools:
        function = gemini.FunctionDeclaration(
            name=TOOL, description="Weather", parameters_json_schema=SCHEMA
        )
        fields["tools"] = [gemini.Tool(function_declarations=[function])]
    if ask.schema:
        fields["response_mime_type"] = "application/json"
        fields["response_json_schema"] = SCHEMA
    if ask.thinks:
        fields["thinking_config"] = gemini.ThinkingConfig(
            include_thoughts=True, thinking_budget=4000
        )
    config = gemini.GenerateContentConfig(**fields)
    options = gemini.HttpOptions(base_url=url)
    client = genai.Client(api_key=KEY, vertexai=False, http_options=options).aio
    try:
        if not ask.stream:
            answers = [
                await client.models.generate_content(
                    model=ask.model, contents=contents, config=config
                )
            ]
        else:
            stream = await client.models.generate_content_stream(
                model=ask.model, contents=contents, config=config
            )
            answers = [answer async for answer in stream]
    except genai.errors.APIError as error:
        raise Refused(type(error).__name__, error.code) from error
    finally:
        await client.aclose()
    parts = [
        part
        for answer in answers
        for candidate in answer.candidates or ()
        if candidate.content is not None
        for part in candidate.content.parts or ()
    ]
    usage = next(each.usage_metadata for each in reversed(answers) if each.usage_metadata)
    reasons = [c.finish_reason for a in answers for c in a.candidates or () if c.finish_reason]
    return Said(
        "".join(part.text or "" for part in parts if not part.thought),
        tuple(
            (part.function_call.id or "", part.function_call.name or "", part.function_call.args)
            for part in parts
            if part.function_call
        ),
        (usage.prompt_token_count or 0, usage.candidates_token_count or 0),
        reasons[-1].name,
        "".join(part.text or "" for part in parts if part.thought),
        next((answer.model_version for answer in answers if answer.model_version), ""),
    )


CLIENTS = {
    "openai": say_openai,
    "responses": say_responses,
    "anthropic": say_anthropic,
    "gemini": say_gemini,
}


async def streamed_text(url: str, *, responses: bool = False) -> str:
    """Return the text that OpenAI's client reads from a stream."""
    async with openai.AsyncOpenAI(base_url=url + "/v1", api_key=KEY, max_retries=0) as client:
        if responses:
            async with client.responses.stream(model="m", input="Sky?") as events:
                return (await events.get_final_response()).output_text
        stream: Any = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "Sky?"}], stream=True
        )
        return "".join([each.choices[0].delta.content or "" async for each in stream])
