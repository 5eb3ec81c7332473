"""The cases of one version on one binding, in order."""

import asyncio
import re

from a2a.client import ClientConfig, ClientFactory
from a2a.client.client import ClientCallContext
from a2a.client.errors import A2AClientError
from a2a.client.service_parameters import ServiceParametersFactory, with_a2a_extensions
from a2a.compat.v0_3 import types as types_v03
from a2a.types import a2a_pb2 as a2a
from a2a.utils import errors
from google.protobuf import json_format

from events import collect, nothing, raises, take, task_of, text, want
from webhook import Webhook


EXTENSIONS = 'https://agentic-sandbox.aiwg.io/extensions/'
RUNTIME = EXTENSIONS + 'runtime/v1'
ADAPTER = EXTENSIONS + 'adapter-command/v1'
HITL = EXTENSIONS + 'hitl-prompt/v1'
PATIENCE = 90.0

State = a2a.TaskState


class Cases:
    """Later ones use what earlier ones made."""

    names = (
        'send', 'get', 'list', 'errors', 'extension-required', 'stream', 'send-immediately', 'subscribe', 'cancel',
        'input-required', 'extended-card', 'push-create', 'push-get', 'push-list', 'push-deliver', 'push-delete',
    )

    def __init__(self, base, http, card, verify, binding, version):
        self.base, self.http, self.verify, self.binding, self.version = base, http, verify, binding, version
        self.key = re.sub(r'\W', '', f'py-{binding}-{version}'.lower())
        self.serial = 0
        config = {'httpx_client': http, 'supported_protocol_bindings': [binding]}
        self.client = ClientFactory(ClientConfig(streaming=False, **config)).create(card)
        self.streaming = ClientFactory(ClientConfig(streaming=True, **config)).create(card)
        self.context = self.activate(RUNTIME)

    @staticmethod
    def activate(*extensions):
        return ClientCallContext(
            service_parameters=ServiceParametersFactory.create([with_a2a_extensions(list(extensions))])
        )

    def request(self, words, *, command=None, **more):
        """A message: plain text, or a bounded command with the text for it."""
        self.serial += 1
        message = a2a.Message(
            message_id=f'{self.key}-{self.serial}', role=a2a.Role.ROLE_USER, parts=[a2a.Part(text=words)], **more
        )
        if command:
            message.metadata.update({ADAPTER: {
                'adapter': 'sandbox-agent-runner', 'mode': 'plan', 'timeout_seconds': 300,
                'command': ['node', '.aiwg/ops/adapters/sandbox-agent-runner/runner.mjs', '--request',
                            f'.aiwg/ops/runs/{command}.json'],
            }})
        return a2a.SendMessageRequest(message=message)

    async def send(self, request, context=None):
        return await task_of(self.client.send_message(request, context=context or self.context))

    async def hold(self, mark):
        """Starts a command that goes on until it is released."""
        request = self.request(self.key + mark, command='hold')
        request.configuration.return_immediately = True
        task = await self.send(request)
        want(task.status.state in (State.TASK_STATE_SUBMITTED, State.TASK_STATE_WORKING), 'an unfinished task', task)
        return task

    async def release(self, mark):
        task = await self.send(self.request(self.key + mark, command='release'))
        want(task.status.state == State.TASK_STATE_COMPLETED, 'a release', task)

    async def case_send(self):
        request = self.request('hello')
        task = await self.send(request)
        want(task.status.state == State.TASK_STATE_COMPLETED, 'a completed task', task)
        want(text(task) == 'hello', 'the text as artifact', task)
        want(task.metadata['runtime.kind'] == 'host', 'runtime.kind', task.metadata)
        want(self.base.endswith(task.metadata['runtime.instance_id']), 'runtime.instance_id', task.metadata)
        want(task.history[0].message_id == request.message.message_id, 'the message in the history', task)
        self.done = task

    async def case_get(self):
        task = await self.client.get_task(a2a.GetTaskRequest(id=self.done.id), context=self.context)
        want(task == self.done, 'the task as it was answered', task)
        task = await self.client.get_task(a2a.GetTaskRequest(id=self.done.id, history_length=0), context=self.context)
        want(not task.history and task.status.HasField('timestamp'), 'no history but a timestamp', task)

    async def case_list(self):
        context_id = self.done.context_id
        sent = [(await self.send(self.request(f'list {i}', context_id=context_id))).id for i in range(2)]
        seen, token = [], ''
        while True:
            page = await self.client.list_tasks(
                a2a.ListTasksRequest(context_id=context_id, page_size=1, page_token=token), context=self.context
            )
            want(len(page.tasks) == 1 and page.total_size == 3 and not page.tasks[0].artifacts, 'a page of one', page)
            seen.append(page.tasks[0].id)
            token = page.next_page_token
            if not token:
                break
        want(seen == [sent[1], sent[0], self.done.id], 'the newest first', seen)
        working = await self.client.list_tasks(
            a2a.ListTasksRequest(context_id=context_id, status=State.TASK_STATE_WORKING), context=self.context
        )
        want(not working.tasks and working.total_size == 0, 'no working task', working)

    async def case_errors(self):
        get, cancel = self.client.get_task, self.client.cancel_task
        await raises(errors.TaskNotFoundError, get(a2a.GetTaskRequest(id='no-such-task'), context=self.context))
        await raises(errors.TaskNotCancelableError, cancel(a2a.CancelTaskRequest(id=self.done.id), context=self.context))
        await raises(
            errors.UnsupportedOperationError,
            collect(self.streaming.subscribe(a2a.SubscribeToTaskRequest(id=self.done.id), context=self.context)),
        )

    async def case_extension_required(self):
        # runtime/v1 wants HTTP status 400 on every binding; this SDK reads the
        # reason on HTTP+JSON only.
        named = (self.version, self.binding) == ('1.0', 'HTTP+JSON')
        kind = errors.ExtensionSupportRequiredError if named else Exception
        await raises(kind, self.send(self.request('x'), context=ClientCallContext()), 'EXTENSION_REQUIRED' if named else '')

    async def case_stream(self):
        stream = self.streaming.send_message(self.request('x', command='lines'), context=self.context)
        seen = await collect(stream)
        want(seen.first == 'task', 'the task first', seen)
        want(seen.text == 'one\ntwo\nthree\n', 'all lines', repr(seen.text))
        want(seen.states[-1] == State.TASK_STATE_COMPLETED, 'a completed task at the end', seen.states)

    async def case_send_immediately(self):
        self.held = await self.hold('held')

    async def case_subscribe(self):
        seen = nothing()
        request = a2a.SubscribeToTaskRequest(id=self.held.id)
        released = False
        async for event in self.streaming.subscribe(request, context=self.context):
            take(seen, event)
            if not released and 'begun' in seen.text:
                released = True
                await self.release('held')
        want(seen.first == 'task' and seen.text == 'begun\nended\n', 'the whole output', seen.first, repr(seen.text))
        want(seen.states[-1] == State.TASK_STATE_COMPLETED, 'a completed task at the end', seen.states)

    async def case_cancel(self):
        task = await self.hold('cancelled')
        task = await self.client.cancel_task(a2a.CancelTaskRequest(id=task.id), context=self.context)
        want(task.status.state == State.TASK_STATE_CANCELED, 'a canceled task', task)

    async def case_input_required(self):
        context = self.activate(RUNTIME, ADAPTER, HITL)
        request = self.request('x', command='ask')
        request.message.metadata[ADAPTER].update({'input_mode': 'text-line'})
        task = await self.send(request, context)
        want(task.status.state == State.TASK_STATE_INPUT_REQUIRED, 'a question', task)
        prompt = json_format.MessageToDict(task.status.message.metadata)[HITL]
        want('Continue? [y/N]' in prompt['prompt'], 'the question in the envelope', prompt)

        def reply(prompt_id):
            request = self.request('yes', task_id=task.id, context_id=task.context_id)
            request.message.metadata.update(
                {'hitl_response_for': {'prompt_id': prompt_id, 'payload': {'text': 'y'}}}
            )
            return request

        await raises(Exception, self.send(reply('6ba7b810-9dad-41d1-80b4-00c04fd430c8'), context), '409|-32010|hitl_already_answered')
        seen = await collect(self.streaming.send_message(reply(prompt['prompt_id']), context=context))
        want(seen.states[-1] == State.TASK_STATE_COMPLETED, 'a completed task', seen.states)
        want(seen.text.endswith('answer <y>\n'), 'the answer in the output', repr(seen.text))
        await raises(Exception, self.send(reply(prompt['prompt_id']), context), '409|-32010|hitl_already_answered')

    async def case_extended_card(self):
        verify = self.verify if self.version == '1.0' else None  # cards of 0.3 are not signed
        card = await self.client.get_extended_agent_card(
            a2a.GetExtendedAgentCardRequest(), context=self.context, signature_verifier=verify
        )
        want(card.name == 'interop' and [s.id for s in card.skills][0] == 'cases', 'the card', card)
        want('runner.echo' in [s.id for s in card.skills], 'the runners as skills', card)

    async def case_push_create(self):
        """One webhook with a message, one made later with credentials."""
        self.hook, self.late = Webhook(), Webhook()
        request = self.request(self.key + 'push', command='hold')
        request.configuration.return_immediately = True
        request.configuration.task_push_notification_config.CopyFrom(
            a2a.TaskPushNotificationConfig(id='inline', url=self.hook.url, token='opaque-token')
        )
        self.told = await self.send(request)
        made = await self.client.create_task_push_notification_config(
            a2a.TaskPushNotificationConfig(
                task_id=self.told.id, id='late', url=self.late.url,
                authentication=a2a.AuthenticationInfo(scheme='Bearer', credentials='webhook-secret'),
            ),
            context=self.context,
        )
        want((made.task_id, made.id, made.url) == (self.told.id, 'late', self.late.url), 'the webhook', made)
        want(made.authentication.scheme == 'Bearer' and not made.authentication.credentials, 'no secret', made)

    async def case_push_get(self):
        get = self.client.get_task_push_notification_config
        for name, hook in (('inline', self.hook), ('late', self.late)):
            got = await get(
                a2a.GetTaskPushNotificationConfigRequest(task_id=self.told.id, id=name), context=self.context
            )
            want((got.id, got.url, got.token) == (name, hook.url, ''), 'the webhook without its token', got)
        missing = a2a.GetTaskPushNotificationConfigRequest(task_id=self.told.id, id='none')
        await raises(errors.TaskNotFoundError, get(missing, context=self.context))

    async def case_push_list(self):
        request = a2a.ListTaskPushNotificationConfigsRequest(task_id=self.told.id)
        got = await self.client.list_task_push_notification_configs(request, context=self.context)
        want([c.id for c in got.configs] == ['inline', 'late'], 'both webhooks', got)

    async def case_push_deliver(self):
        await self.release('push')
        for hook in (self.hook, self.late):
            seen = nothing()
            while State.TASK_STATE_COMPLETED not in seen.states:
                headers, body = await hook.next(PATIENCE)
                if hook is self.hook:
                    tokens = [headers.get(n) for n in ('X-A2A-Notification-Token', 'A2A-Notification-Token')]
                    want(tokens == ['opaque-token'] * 2, 'the token in both spellings', tokens)
                else:
                    want(headers.get('Authorization') == 'Bearer webhook-secret', 'the credentials', headers)
                if self.version == '1.0':
                    want(headers.get('Content-Type') == 'application/a2a+json', 'the media type', headers)
                    take(seen, json_format.Parse(body, a2a.StreamResponse()))
                else:
                    told = types_v03.Task.model_validate_json(body)
                    want(told.kind == 'task' and told.id == self.told.id, 'the task', body)
                    seen.states.append(State.Value('TASK_STATE_' + told.status.state.value.upper()))
                    seen.text = ''.join(p.root.text for x in told.artifacts or [] if x.name == 'stdout' for p in x.parts)
            if hook is self.hook:
                want(seen.text == 'begun\nended\n', 'the whole output in order', repr(seen.text))
                want(seen.states[-2:] == [State.TASK_STATE_WORKING, State.TASK_STATE_COMPLETED], 'states in order', seen.states)
            hook.close()

    async def case_push_delete(self):
        delete = a2a.DeleteTaskPushNotificationConfigRequest(task_id=self.told.id, id='late')
        for _ in range(2):  # it is idempotent
            await self.client.delete_task_push_notification_config(delete, context=self.context)
        missing = a2a.GetTaskPushNotificationConfigRequest(task_id=self.told.id, id='late')
        get = self.client.get_task_push_notification_config
        await raises(errors.TaskNotFoundError, get(missing, context=self.context))

    async def before_restart(self):
        """Follows a command that will outlive the daemon, up to its first output."""
        self.crash = nothing()
        begun = asyncio.Event()

        async def follow():
            request = self.request(self.key + 'restart', command='hold')
            async for event in self.streaming.send_message(request, context=self.context):
                take(self.crash, event)
                if 'begun' in self.crash.text:
                    begun.set()

        self.following = asyncio.create_task(follow())
        waiting = asyncio.create_task(begun.wait())
        await asyncio.wait({self.following, waiting}, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if self.following.done():
            await self.following
        want(begun.is_set() and not self.following.done(), 'a stream that goes on', self.crash)

    async def case_restart(self):
        """The stream broke; the task goes on and can be followed again."""
        try:
            await asyncio.wait_for(self.following, PATIENCE)
        except A2AClientError:
            pass  # the connection was lost
        want(State.TASK_STATE_COMPLETED not in self.crash.states, 'a stream cut short', self.crash.states)
        request = a2a.SubscribeToTaskRequest(id=self.crash.task.id)
        seen = nothing()
        released = False
        async for event in self.streaming.subscribe(request, context=self.context):
            take(seen, event)
            if not released:
                want(seen.first == 'task' and seen.text == 'begun\n', 'what was there before', seen.first, repr(seen.text))
                released = True
                await self.release('restart')
        want(seen.text == 'begun\nended\n', 'the whole output', repr(seen.text))
        want(seen.states[-1] == State.TASK_STATE_COMPLETED, 'a completed task at the end', seen.states)
