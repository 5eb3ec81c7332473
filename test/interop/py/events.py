"""What the cases say when something is not as it should be, and how they see
the events of a stream."""

import re

from types import SimpleNamespace


def want(condition, what, *seen):
    """Fails the case that is running."""
    if not condition:
        raise AssertionError(f'want {what}, got ' + ', '.join(str(s) for s in seen))


async def raises(kind, awaitable, pattern=''):
    """Wants an error of the SDK, and its text to match."""
    try:
        got = await awaitable
    except kind as e:
        want(re.search(pattern, str(e)), f'an error like {pattern}', repr(e))
        return e
    raise AssertionError(f'want {kind.__name__}, got no error but {got}')


async def collect(stream):
    """All events of a stream, as one history."""
    seen = nothing()
    async for event in stream:
        take(seen, event)
    return seen


def take(seen, event):
    """Adds an event to what has been seen."""
    kind = event.WhichOneof('payload')
    seen.first = seen.first or kind
    if kind == 'task':
        seen.task = event.task
        seen.status = event.task.status
        seen.text = text(event.task)
    elif kind == 'status_update':
        seen.status = event.status_update.status
    elif kind == 'artifact_update':
        update = event.artifact_update
        if update.artifact.name != 'stderr':
            seen.text += ''.join(p.text for p in update.artifact.parts)
    if seen.status and (not seen.states or seen.states[-1] != seen.status.state):
        seen.states.append(seen.status.state)


def text(task):
    return ''.join(p.text for x in task.artifacts if x.name != 'stderr' for p in x.parts)


async def task_of(events):
    """The task in the answer to a message that was sent without a stream."""
    all_events = [e async for e in events]
    want(len(all_events) == 1 and all_events[0].HasField('task'), 'one task', all_events)
    return all_events[0].task


def nothing():
    """The history of no events."""
    return SimpleNamespace(first=None, states=[], text='', task=None, status=None)
