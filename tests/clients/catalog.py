"""Clients that `make clients` tries: their packages, each in an environment of its own, and their scripts."""

from __future__ import annotations

from dataclasses import dataclass

OPENAI = "openai==3.54.0"


@dataclass(frozen=True)
class Client:
    """One client.

    Attributes:
        name: of its environment and of the file of its requests.
        packages: pinned requirements of pip or npm; the first is the one whose version is reported.
        script: in tests/clients/scripts; one that ends with .mjs is run by Node.
        environment: name of the environment, which may be another client's of the same packages; default: `name`.
        sends_pictures: its script needs a model of text and vision; see `tests.clients.vision_server`.
        requirements: installed after the packages, which are then installed without what they depend on; pip runs in
            the environment's site-packages.
    """

    name: str
    packages: tuple[str, ...]
    script: str
    requirements: tuple[str, ...] = ()
    environment: str = ""
    sends_pictures: bool = False

    @property
    def in_node(self) -> bool:
        return self.script.endswith(".mjs")

    @property
    def version(self) -> str:
        return self.packages[0].rsplit("==" if not self.in_node else "@", 1)[1]


def _pictures(name: str, packages: tuple[str, ...], script: str, environment: str) -> Client:
    return Client(name, packages, script, environment=environment, sends_pictures=True)


LANGCHAIN = ("langchain==1.4.7", "langchain-openai==1.7.3", "langchain-anthropic==1.7.7", OPENAI, "anthropic==2.12.0")
PYDANTIC_AI = ("pydantic-ai-slim[openai,anthropic]==2.68.0", OPENAI)
AI_SDK = (
    "ai@6.0.326",
    "@ai-sdk/openai@3.0.141",
    "@ai-sdk/openai-compatible@2.0.92",
    "@ai-sdk/anthropic@3.0.140",
    "zod@4.6.7",
)
INSTRUCTOR = ("instructor==1.17.0", "openai==3.3.0", "anthropic==2.12.0")

CLIENTS = (
    Client("openai-3", (OPENAI,), "openai_python.py"),
    Client("openai-2", ("openai==2.54.0",), "openai_python.py"),
    Client("openai-1", ("openai==1.109.1",), "openai_python.py"),
    Client("openai-agents", ("openai-agents==0.24.0", OPENAI), "openai_agents_python.py"),
    Client("anthropic-2", ("anthropic==2.12.0",), "anthropic_python.py"),
    Client("anthropic-1", ("anthropic==1.17.0",), "anthropic_python.py"),
    Client("anthropic-0", ("anthropic==0.125.0",), "anthropic_python.py"),
    Client("langchain", LANGCHAIN, "langchain_python.py"),
    Client(
        "llama-index",
        (
            "llama-index-core==0.14.25",
            "llama-index-llms-openai-like==0.8.1",
            "llama-index-embeddings-openai-like==0.4.0",
        ),
        "llama_index_python.py",
    ),
    Client("instructor", INSTRUCTOR, "instructor_python.py"),
    Client("litellm", ("litellm==1.106.2", "mcp"), "litellm_python.py"),
    Client("pydantic-ai", PYDANTIC_AI, "pydantic_ai_python.py"),
    Client("outlines", ("outlines==1.3.3", OPENAI), "outlines_python.py"),
    Client("guidance", ("guidance==0.3.1", OPENAI), "guidance_python.py"),
    Client("dspy", ("dspy[numpy]==3.4.1", "litellm==1.106.2", "mcp"), "dspy_python.py"),
    Client("lm-eval", ("lm-eval[api]==0.4.13",), "lm_eval_python.py"),
    Client("openai-node", ("openai@6.49.0", "zod@4.6.7"), "openai_node.mjs"),
    Client("ai-sdk", AI_SDK, "ai_sdk.mjs"),
    # All that Open WebUI names would be torch and more; its wheel has a shorter list, which lacks four packages.
    Client(
        "open-webui",
        ("open-webui==0.12.4",),
        "open_webui_python.py",
        (
            "-r",
            "requirements-slim.txt",
            "chromadb==1.5.9",
            "pydub==0.25.1",
            "azure-storage-blob==12.29.0",
            "google-cloud-storage==3.9.0",
        ),
    ),
    Client("anthropic-node", ("@anthropic-ai/sdk@1.12.0",), "anthropic_node.mjs"),
    _pictures("openai-pictures", (OPENAI,), "openai_pictures.py", "openai-3"),
    _pictures("anthropic-pictures", ("anthropic==2.12.0",), "anthropic_pictures.py", "anthropic-2"),
    _pictures("langchain-pictures", LANGCHAIN, "langchain_pictures.py", "langchain"),
    _pictures("instructor-pictures", INSTRUCTOR, "instructor_pictures.py", "instructor"),
    _pictures("pydantic-ai-pictures", PYDANTIC_AI, "pydantic_ai_pictures.py", "pydantic-ai"),
    _pictures("ai-sdk-pictures", AI_SDK, "ai_sdk_pictures.mjs", "ai-sdk"),
)
