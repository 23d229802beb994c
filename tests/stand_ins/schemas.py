"""JSON schemas as requests bring them, each with a prompt. Texts and lists are bounded: a small model can end them."""

from typing import Any


def closed(properties: dict[str, Any], *optional: str, **more: Any) -> dict[str, Any]:
    """An object with these properties and no others, all required but the optional ones."""
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False, **more}


def text(most: int, least: int = 0) -> dict[str, Any]:
    """A text of so many characters at most."""
    return {"type": "string", "minLength": least, "maxLength": most}


def some(items: Any, most: int, least: int = 0) -> dict[str, Any]:
    """A list of so many items at most."""
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


def a(format_name: str) -> dict[str, Any]:
    """A text in a format, which is no longer than it has to be."""
    return {"type": "string", "format": format_name, "maxLength": 40}


ADDRESS = closed({"street": text(30, 1), "city": text(20, 1), "zip": {"type": "string", "pattern": r"^\d{5}$"}})

# Each name with its schema and a prompt.
SCHEMAS: dict[str, tuple[dict[str, Any], str]] = {
    "person": (
        closed(
            {
                "name": text(40, 1),
                "age": {"type": "integer", "minimum": 0, "maximum": 120},
                "student": {"type": "boolean"},
            }
        ),
        "Extract the person: Anna Lind is a 31 year old carpenter.",
    ),
    "sentiment": (
        closed(
            {
                "sentiment": {"enum": ["positive", "neutral", "negative"]},
                "score": {"type": "number", "minimum": 0, "maximum": 1},
            }
        ),
        "What is the sentiment of: The soup was cold and the waiter rude.",
    ),
    "order": (
        closed(
            {
                "order_id": {"type": "string", "pattern": "^ORD-[0-9]{6}$"},
                "customer": closed({"name": text(30, 1), "address": {"$ref": "#/$defs/address"}}),
                "items": some(
                    closed({"sku": text(10, 1), "quantity": {"type": "integer", "minimum": 1, "maximum": 99}}), 3, 1
                ),
            },
            **{"$defs": {"address": ADDRESS}},
        ),
        "Write the order of Tom for two lamps to 1 High Street, Springfield 12345.",
    ),
    "event": (
        closed({"title": text(40, 1), "starts": a("date-time"), "day": a("date"), "attendees": some(a("email"), 2)}),
        "Make a calendar entry: lunch with bob@example.com on the first of March 2025 at noon.",
    ),
    "weather_call": (
        closed(
            {
                "name": {"const": "get_weather"},
                "arguments": closed({"city": text(20, 1), "unit": {"enum": ["C", "F"]}}, "unit"),
            }
        ),
        "Call the tool for the weather in Oslo.",
    ),
    "tool_union": (
        {
            "anyOf": [
                closed({"tool": {"const": "search"}, "query": text(40, 1)}),
                closed(
                    {
                        "tool": {"const": "calculate"},
                        "a": {"type": "integer"},
                        "op": {"enum": ["+", "-", "*"]},
                        "b": {"type": "integer"},
                    }
                ),
                closed({"tool": {"const": "none"}}),
            ]
        },
        "Which tool do you need to find 17 times 3?",
    ),
    "shape": (
        {
            "oneOf": [
                closed(
                    {"kind": {"const": "circle"}, "radius": {"type": "number", "exclusiveMinimum": 0, "maximum": 100}}
                ),
                closed(
                    {
                        "kind": {"const": "rectangle"},
                        "sides": some({"type": "number", "minimum": 0.5, "maximum": 100}, 2, 2),
                    }
                ),
            ]
        },
        "Describe a circle of radius 3 as JSON.",
    ),
    "tree": (
        {
            "$ref": "#/$defs/node",
            "$defs": {
                "node": closed(
                    {
                        "value": {"type": "integer", "minimum": 0, "maximum": 9},
                        "children": some({"$ref": "#/$defs/node"}, 2),
                    }
                )
            },
        },
        "Draw a small tree of numbers.",
    ),
    "linked_list": (
        {
            "type": "object",
            "properties": {"item": text(12, 1), "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
            "required": ["item", "next"],
            "additionalProperties": False,
        },
        "Write the list: milk, bread.",
    ),
    "contact": (
        closed(
            {
                "email": a("email"),
                "phone": {"type": "string", "pattern": r"^\+[1-9]\d{6,12}$"},
                "fax": {"type": ["string", "null"], "maxLength": 12},
            }
        ),
        "Extract the contact: reach me at eve@example.org or +4712345678.",
    ),
    "server": (
        closed(
            {
                "host": a("hostname"),
                "ip": a("ipv4"),
                "port": {"type": "integer", "minimum": 1, "maximum": 65535},
                "tls": {"type": "boolean", "default": True},
            }
        ),
        "Describe the server at 10.0.0.5, port 8080.",
    ),
    "ids": (
        closed({"id": a("uuid"), "parent": {"anyOf": [a("uuid"), {"type": "null"}]}}),
        "Make an entry with a random UUID and no parent.",
    ),
    "classification": (
        closed(
            {
                "labels": some({"enum": ["bug", "feature", "question", "docs"]}, 3, 1),
                "confidence": {"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 100},
            }
        ),
        "Label the issue: The program crashes when I click save.",
    ),
    "recipe": (
        closed(
            {
                "title": text(30, 1),
                "servings": {"type": "integer", "minimum": 1, "maximum": 12},
                "ingredients": some(
                    closed({"name": text(16, 1), "grams": {"type": "number", "minimum": 0, "maximum": 2000}}), 4, 2
                ),
                "steps": some(text(50, 1), 3, 1),
            }
        ),
        "Give me a recipe for pancakes.",
    ),
    "quiz": (
        closed(
            {
                "question": text(60, 1),
                "options": some(text(16, 1), 4, 4),
                "answer": {"type": "integer", "minimum": 0, "maximum": 3},
            }
        ),
        "Write a question about the capital of France with four options.",
    ),
    "point": (
        {
            "type": "array",
            "prefixItems": [
                {"type": "number", "minimum": -90, "maximum": 90},
                {"type": "number", "minimum": -180, "maximum": 180},
            ],
            "items": False,
            "minItems": 2,
        },
        "Latitude and longitude of Paris as a pair of numbers.",
    ),
    "translations": (
        {
            "type": "object",
            "patternProperties": {"^(de|fr|es)$": text(20, 1)},
            "additionalProperties": False,
            "maxProperties": 3,
        },
        "Translate 'house' to German, French and Spanish.",
    ),
    "employee": (
        {
            "allOf": [
                {"type": "object", "properties": {"name": text(30, 1)}, "required": ["name"]},
                {
                    "type": "object",
                    "properties": {"salary": {"type": "integer", "minimum": 1000, "maximum": 99999}},
                    "required": ["salary"],
                },
            ],
            "additionalProperties": False,
            "properties": {"name": True, "salary": True},
        },
        "Extract the employee: Jo earns 4200 a month.",
    ),
    "settings": (
        closed(
            {
                "theme": {"enum": ["light", "dark", None]},
                "font_size": {"enum": [10, 12, 14]},
                "language": {"type": "string", "pattern": "^[a-z]{2}(-[A-Z]{2})?$"},
                "beta": {"type": "boolean"},
            },
            "language",
            "beta",
        ),
        "Settings with a dark theme and a font of size 12.",
    ),
    "invoice": (
        closed(
            {
                "number": {"type": "string", "pattern": r"^[A-Z]{2}\d{4}$"},
                "issued": a("date"),
                "currency": {"enum": ["EUR", "USD", "NOK"]},
                "lines": some(
                    closed(
                        {
                            "text": text(24, 1),
                            "net": {"type": "number", "minimum": 0, "exclusiveMaximum": 100000},
                            "vat": {"enum": [0, 7, 19, 25]},
                        }
                    ),
                    3,
                    1,
                ),
                "paid": closed({"at": a("time"), "by": {"oneOf": [{"const": "card"}, {"const": "cash"}]}}),
                "site": a("uri"),
            },
            "paid",
            "site",
        ),
        "Write the invoice AB1234 of 2 May 2024 for a desk at 120 euros.",
    ),
}
