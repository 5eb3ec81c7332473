// The cases of one version on one binding, in order.
import { Role, SendMessageRequest, StreamResponse, TaskState } from '@a2a-js/sdk';
import { ServiceParameters, withA2AExtensions } from '@a2a-js/sdk/client';

import { Seen, collect, output, raises, want } from './want.mjs';
import { Webhook } from './webhook.mjs';

const EXTENSIONS = 'https://agentic-sandbox.aiwg.io/extensions/';
export const RUNTIME = `${EXTENSIONS}runtime/v1`;
const ADAPTER = `${EXTENSIONS}adapter-command/v1`;
const HITL = `${EXTENSIONS}hitl-prompt/v1`;

const activate = (...uris) => ({ serviceParameters: ServiceParameters.create(withA2AExtensions(...uris)) });

export class Cases {
  static names = [
    'send', 'get', 'list', 'errors', 'extension-required', 'stream', 'send-immediately', 'subscribe', 'cancel',
    'input-required', 'extended-card', 'push-create', 'push-get', 'push-list', 'push-deliver', 'push-delete',
  ];

  #serial = 0;

  constructor(base, client, binding, version) {
    Object.assign(this, { base, client, binding, version });
    this.key = `js-${binding}-${version}`.toLowerCase().replace(/[^a-z0-9]/g, '');
    this.options = activate(RUNTIME);
  }

  run(name) {
    return this[name.replace(/-(.)/g, (_, c) => c.toUpperCase())]();
  }

  // request is a message: plain text, or a bounded command with the text for it.
  request(words, { command, metadata = {}, configuration = {}, envelope = {}, ...more } = {}) {
    this.#serial++;
    if (command) {
      metadata[ADAPTER] = {
        adapter: 'sandbox-agent-runner', mode: 'plan', timeout_seconds: 300,
        command: [
          'node', '.aiwg/ops/adapters/sandbox-agent-runner/runner.mjs', '--request', `.aiwg/ops/runs/${command}.json`,
        ],
        ...envelope,
      };
    }
    return SendMessageRequest.fromJSON({
      message: {
        messageId: `${this.key}-${this.#serial}`, role: Role[Role.ROLE_USER], parts: [{ text: words }], metadata, ...more,
      },
      configuration,
    });
  }

  // hold starts a command that goes on until it is released.
  async hold(mark, configuration = {}) {
    const request = this.request(this.key + mark, {
      command: 'hold', configuration: { returnImmediately: true, ...configuration },
    });
    const task = await this.client.sendMessage(request, this.options);
    const unfinished = [TaskState.TASK_STATE_SUBMITTED, TaskState.TASK_STATE_WORKING];
    want(unfinished.includes(task.status.state), 'an unfinished task', task);
    return task;
  }

  async release(mark) {
    const task = await this.client.sendMessage(this.request(this.key + mark, { command: 'release' }), this.options);
    want(task.status.state === TaskState.TASK_STATE_COMPLETED, 'a release', task);
  }

  async send() {
    const request = this.request('hello');
    const task = await this.client.sendMessage(request, this.options);
    want(task.status.state === TaskState.TASK_STATE_COMPLETED, 'a completed task', task);
    want(output(task) === 'hello', 'the text as artifact', task);
    want(task.metadata['runtime.kind'] === 'host', 'runtime.kind', task.metadata);
    want(this.base.endsWith(task.metadata['runtime.instance_id']), 'runtime.instance_id', task.metadata);
    want(task.history[0].messageId === request.message.messageId, 'the message in the history', task);
    this.done = task;
  }

  async get() {
    const task = await this.client.getTask({ tenant: '', id: this.done.id }, this.options);
    want(JSON.stringify(task) === JSON.stringify(this.done), 'the task as it was answered', task, this.done);
    const bare = await this.client.getTask({ tenant: '', id: this.done.id, historyLength: 0 }, this.options);
    want(bare.history.length === 0 && bare.status.timestamp, 'no history but a timestamp', bare);
  }

  async list() {
    const { contextId } = this.done;
    const sent = [];
    for (const words of ['list 0', 'list 1']) {
      sent.push((await this.client.sendMessage(this.request(words, { contextId }), this.options)).id);
    }
    const filter = { tenant: '', contextId, status: TaskState.TASK_STATE_UNSPECIFIED, pageSize: 1 };
    const seen = [];
    let pageToken = '';
    do {
      const page = await this.client.listTasks({ ...filter, pageToken }, this.options);
      want(page.tasks.length === 1 && page.totalSize === 3 && page.tasks[0].artifacts.length === 0, 'a page of one', page);
      seen.push(page.tasks[0].id);
      pageToken = page.nextPageToken;
    } while (pageToken);
    want(seen.join() === [sent[1], sent[0], this.done.id].join(), 'the newest first', seen);
    const working = await this.client.listTasks(
      { ...filter, pageToken: '', status: TaskState.TASK_STATE_WORKING }, this.options,
    );
    want(working.tasks.length === 0 && working.totalSize === 0, 'no working task', working);
  }

  async errors() {
    const id = this.done.id;
    await raises(/TaskNotFoundError/, this.client.getTask({ tenant: '', id: 'no-such-task' }, this.options));
    await raises(/TaskNotCancelableError/, this.client.cancelTask({ tenant: '', id }, this.options));
    await raises(/UnsupportedOperationError/, collect(this.client.resubscribeTask({ tenant: '', id }, this.options)));
  }

  async extensionRequired() {
    await raises(/EXTENSION_REQUIRED/, this.client.sendMessage(this.request('x'), {}));
  }

  async stream() {
    const seen = await collect(this.client.sendMessageStream(this.request('x', { command: 'lines' }), this.options));
    want(seen.first === 'task', 'the task first', seen);
    want(seen.text === 'one\ntwo\nthree\n', 'all lines', seen.text);
    want(seen.completed(), 'a completed task at the end', seen.states);
  }

  async sendImmediately() {
    this.held = await this.hold('held');
  }

  // follow subscribes to a command that waits, releases it and wants all of it.
  async follow(id, mark, snapshot) {
    const seen = new Seen();
    let released = false;
    for await (const event of this.client.resubscribeTask({ tenant: '', id }, this.options)) {
      seen.take(event);
      if (snapshot && !released) {
        want(seen.text === snapshot, 'what was there before', seen.text);
      }
      if (!released && seen.text.includes('begun')) {
        released = true;
        await this.release(mark);
      }
    }
    want(seen.first === 'task' && seen.text === 'begun\nended\n', 'the whole output', seen.first, seen.text);
    want(seen.completed(), 'a completed task at the end', seen.states);
  }

  async subscribe() {
    await this.follow(this.held.id, 'held');
  }

  async cancel() {
    const { id } = await this.hold('cancelled');
    const task = await this.client.cancelTask({ tenant: '', id, metadata: undefined }, this.options);
    want(task.status.state === TaskState.TASK_STATE_CANCELED, 'a canceled task', task);
  }

  async inputRequired() {
    const options = activate(RUNTIME, ADAPTER, HITL);
    const request = this.request('x', { command: 'ask', envelope: { input_mode: 'text-line' } });
    const task = await this.client.sendMessage(request, options);
    want(task.status.state === TaskState.TASK_STATE_INPUT_REQUIRED, 'a question', task);
    const prompt = task.status.message.metadata[HITL];
    want(prompt.prompt.includes('Continue? [y/N]'), 'the question in the envelope', prompt);
    const reply = (prompt_id) => this.request('yes', {
      taskId: task.id, contextId: task.contextId,
      metadata: { hitl_response_for: { prompt_id, payload: { text: 'y' } } },
    });
    await raises(/hitl_already_answered_or_unknown/, this.client.sendMessage(reply('6ba7b810-9dad-41d1-80b4-00c04fd430c8'), options));
    const seen = await collect(this.client.sendMessageStream(reply(prompt.prompt_id), options));
    want(seen.completed(), 'a completed task', seen.states);
    want(seen.text.endsWith('answer <y>\n'), 'the answer in the output', seen.text);
    await raises(/hitl_already_answered_or_unknown/, this.client.sendMessage(reply(prompt.prompt_id), options));
  }

  async extendedCard() {
    const card = await this.client.getAgentCard(this.options);
    want(card.name === 'interop' && card.skills[0].id === 'cases', 'the card', card);
    want(card.skills.some((s) => s.id === 'runner.echo'), 'the runners as skills', card.skills);
  }

  // pushCreate makes one webhook with a message, and one later with credentials.
  async pushCreate() {
    this.hook = await new Webhook().open();
    this.late = await new Webhook().open();
    this.told = await this.hold('push', {
      taskPushNotificationConfig: { id: 'inline', url: this.hook.url, token: 'opaque-token' },
    });
    const made = await this.client.createTaskPushNotificationConfig({
      tenant: '', taskId: this.told.id, id: 'late', url: this.late.url, token: '',
      authentication: { scheme: 'Bearer', credentials: 'webhook-secret' },
    }, this.options);
    want(made.taskId === this.told.id && made.id === 'late' && made.url === this.late.url, 'the webhook', made);
    want(made.authentication.scheme === 'Bearer' && made.authentication.credentials === '', 'no secret', made);
  }

  async pushGet() {
    for (const [id, hook] of [['inline', this.hook], ['late', this.late]]) {
      const got = await this.client.getTaskPushNotificationConfig({ tenant: '', taskId: this.told.id, id }, this.options);
      want(got.id === id && got.url === hook.url && got.token === '', 'the webhook without its token', got);
    }
    const missing = { tenant: '', taskId: this.told.id, id: 'none' };
    await raises(/TaskNotFoundError/, this.client.getTaskPushNotificationConfig(missing, this.options));
  }

  async pushList() {
    const request = { tenant: '', taskId: this.told.id, pageSize: 50, pageToken: '' };
    const got = await this.client.listTaskPushNotificationConfig(request, this.options);
    want(got.configs.map((c) => c.id).join() === 'inline,late', 'both webhooks', got);
  }

  async pushDeliver() {
    await this.release('push');
    for (const hook of [this.hook, this.late]) {
      const seen = new Seen();
      while (!seen.completed()) {
        const { headers, body } = await hook.next();
        if (hook === this.hook) {
          const tokens = [headers['x-a2a-notification-token'], headers['a2a-notification-token']];
          want(tokens.join() === 'opaque-token,opaque-token', 'the token in both spellings', tokens);
        } else {
          want(headers.authorization === 'Bearer webhook-secret', 'the credentials', headers);
        }
        if (this.version === '1.0') {
          want(headers['content-type'] === 'application/a2a+json', 'the media type', headers);
          seen.take(StreamResponse.fromJSON(body));
        } else { // the SDK exports no reader of a task of 0.3
          want(body.kind === 'task' && body.id === this.told.id, 'the task', body);
          seen.states.push(TaskState[`TASK_STATE_${body.status.state.toUpperCase()}`]);
          const stdout = (body.artifacts ?? []).filter((a) => a.name === 'stdout');
          seen.text = stdout.flatMap((a) => a.parts.map((p) => p.text)).join('');
        }
      }
      if (hook === this.hook) {
        want(seen.text === 'begun\nended\n', 'the whole output in order', seen.text);
        const last = [TaskState.TASK_STATE_WORKING, TaskState.TASK_STATE_COMPLETED];
        want(seen.states.slice(-2).join() === last.join(), 'states in order', seen.states);
      }
      hook.close();
    }
  }

  async pushDelete() {
    const late = { tenant: '', taskId: this.told.id, id: 'late' };
    await this.client.deleteTaskPushNotificationConfig(late, this.options);
    await this.client.deleteTaskPushNotificationConfig(late, this.options); // it is idempotent
    await raises(/TaskNotFoundError/, this.client.getTaskPushNotificationConfig(late, this.options));
  }

  // restartBegun follows a command that will outlive the daemon, up to its
  // first output.
  async restartBegun() {
    this.crash = new Seen();
    const { promise: begun, resolve } = Promise.withResolvers();
    this.following = (async () => {
      const request = this.request(`${this.key}restart`, { command: 'hold' });
      for await (const event of this.client.sendMessageStream(request, this.options)) {
        if (this.crash.take(event).text.includes('begun')) {
          resolve();
        }
      }
    })();
    const ended = this.following.then(() => { throw new Error('the stream ended early'); });
    await Promise.race([begun, ended]);
    ended.catch(() => {}); // it is to break now
  }

  // restart: the stream broke; the task goes on and can be followed again.
  async restart() {
    await this.following.catch((e) => want(!/^want /.test(e.message), 'a lost connection', e.message));
    want(!this.crash.completed(), 'a stream cut short', this.crash.states);
    await this.follow(this.crash.task.id, 'restart', 'begun\n');
  }
}
