"""Programs that use a server with one client library each, as its documentation shows.

Run as `python -m tests.server.client_programs.NAME URL`. Each prints one JSON object with
a result for each use. They are processes because the libraries leave warnings and
connections.
"""

QUESTION = "What is the capital of Italy?"
CITY = {
    "title": "City",
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Rome", "Paris"]}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {
    "name": "get_weather",
    "description": "Get the weather of a city.",
    "parameters": CITY,
}
