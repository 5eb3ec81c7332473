// What the cases say when something is not as it should be, and how they see
// the events of a stream.
import { TaskState } from '@a2a-js/sdk';

// want fails the case that is running.
export function want(condition, what, ...seen) {
  if (!condition) {
    throw new Error(`want ${what}, got ${seen.map((s) => JSON.stringify(s)).join(', ')}`);
  }
}

// raises wants an error of the SDK, told by its name or text.
export async function raises(pattern, promise) {
  let got;
  try {
    got = await promise;
  } catch (e) {
    want(pattern.test(`${e.name}: ${e.message}`), `an error like ${pattern}`, `${e.name}: ${e.message}`);
    return;
  }
  throw new Error(`want an error like ${pattern}, got none but ${JSON.stringify(got)}`);
}

export function text(parts) {
  return parts.map((p) => (p.content?.$case === 'text' ? p.content.value : '')).join('');
}

export function output(task) {
  return task.artifacts.filter((a) => a.name !== 'stderr').map((a) => text(a.parts)).join('');
}

// Seen is the history that the events of one task make.
export class Seen {
  first = undefined;
  states = [];
  text = '';
  task = undefined;

  take(event) {
    const { $case, value } = event.payload;
    this.first ??= $case;
    if ($case === 'task') {
      this.task = value;
      this.text = output(value);
    } else if ($case === 'artifactUpdate' && value.artifact.name !== 'stderr') {
      this.text += text(value.artifact.parts);
    }
    if (value.status && this.states.at(-1) !== value.status.state) {
      this.states.push(value.status.state);
    }
    return this;
  }

  completed() {
    return this.states.at(-1) === TaskState.TASK_STATE_COMPLETED;
  }
}

export async function collect(stream) {
  const seen = new Seen();
  for await (const event of stream) {
    seen.take(event);
  }
  return seen;
}
