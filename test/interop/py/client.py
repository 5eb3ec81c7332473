"""Drives a running sandboxd with the Python SDK of A2A.

Standard input has one line of JSON: {"agent": address, "token": bearer token,
"keys": address of the key set}. For every case one line of JSON goes to
standard output: {client, sdk, version, binding, case, ok, error}. Before the
case that outlives the daemon it prints {"barrier": "restart"} and waits for a
line on standard input.
"""

import asyncio
import importlib.metadata
import json
import sys

import httpx

from cards import Discovery
from cases import PATIENCE, Cases


SDK = importlib.metadata.version('a2a-sdk')


def line(value):
    print(json.dumps(value), flush=True)


async def run(version, binding, case, awaitable):
    error = ''
    try:
        await asyncio.wait_for(awaitable, 2 * PATIENCE)
    except Exception as e:  # noqa: BLE001 - told, and judged by who reads it
        error = f'{type(e).__name__}: {e}'
    line({'client': 'python', 'sdk': SDK, 'version': version, 'binding': binding, 'case': case,
          'ok': not error, 'error': error})
    return not error


async def main():
    setup = json.loads(await asyncio.to_thread(sys.stdin.readline))
    headers = {'Authorization': 'Bearer ' + setup['token']}
    async with httpx.AsyncClient(headers=headers, timeout=2 * PATIENCE, trust_env=False) as http:
        discovery = Discovery(setup['agent'], setup['keys'], http)
        verify = await discovery.verifier()
        all_cases = []
        for version in ('1.0', '0.3'):
            if not await run(version, 'card', 'card', discovery.card(version)):
                continue
            if version == '1.0':
                await run(version, 'card', 'card-unauthenticated', discovery.card_unauthenticated(version))
                await run(version, 'card', 'card-signature', discovery.card_signature(version))
            for binding in ('JSONRPC', 'HTTP+JSON'):
                all_cases.append(Cases(setup['agent'], http, discovery.cards[version], verify, binding, version))
        for cases in all_cases:
            for name in Cases.names:
                await run(cases.version, cases.binding, name, getattr(cases, 'case_' + name.replace('-', '_'))())
        begun = [c for c in all_cases if await run(c.version, c.binding, 'restart-begun', c.before_restart())]
        line({'barrier': 'restart'})
        await asyncio.to_thread(sys.stdin.readline)
        for cases in begun:
            await run(cases.version, cases.binding, 'restart', cases.case_restart())


asyncio.run(main())
