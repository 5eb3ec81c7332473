"""The least agent that the Python SDK serves: it sends a text back.

    peer.py memory|sqlite DATABASE

Prints "ready URL" once it listens.
"""

import asyncio
import socket
import sys

import uvicorn
from a2a.helpers.proto_helpers import new_task_from_user_message
from a2a.server.agent_execution import AgentExecutor
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_rest_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentInterface, AgentSkill, Part
from starlette.applications import Starlette


class Echo(AgentExecutor):
    async def execute(self, context, event_queue):
        task = context.current_task or new_task_from_user_message(context.message)
        await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        await updater.start_work()
        await updater.add_artifact([Part(text=context.get_user_input())], name="stdout", last_chunk=True)
        await updater.complete()

    async def cancel(self, context, event_queue):
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


def store(kind, path):
    if kind == "memory":
        return InMemoryTaskStore()
    from a2a.server.tasks import DatabaseTaskStore
    from sqlalchemy.ext.asyncio import create_async_engine

    # Without patience, messages that are sent at once fail: the database is locked.
    return DatabaseTaskStore(create_async_engine("sqlite+aiosqlite:///" + path, connect_args={"timeout": 60}))


async def main(kind, path):
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    url = "http://127.0.0.1:%d" % listener.getsockname()[1]
    card = AgentCard(
        name="echo", description="Sends a text back.", version="1.0.0",
        capabilities=AgentCapabilities(streaming=True), default_input_modes=["text/plain"], default_output_modes=["text/plain"],
        skills=[AgentSkill(id="echo", name="Echo", description="Sends a text back.", tags=["text"])],
        supported_interfaces=[AgentInterface(protocol_binding="HTTP+JSON", protocol_version="1.0", url=url)],
    )
    handler = DefaultRequestHandler(agent_executor=Echo(), task_store=store(kind, path), agent_card=card)
    app = Starlette(routes=create_rest_routes(request_handler=handler))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False, lifespan="off"))
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    while not server.started and not serving.done():
        await asyncio.sleep(0.01)
    if server.started:
        print("ready", url, flush=True)
    await serving


if __name__ == "__main__":
    # uvicorn's own way to choose the loop is not taken when it is embedded.
    import uvloop

    uvloop.run(main(*sys.argv[1:3]))
