// Drives a running sandboxd with the JavaScript SDK of A2A.
//
// Standard input has one line of JSON: {"agent": address, "token": bearer
// token, "keys": address of the key set}. For every case one line of JSON goes
// to standard output: {client, sdk, version, binding, case, ok, error}. Before
// the case that outlives the daemon it prints {"barrier": "restart"} and waits
// for a line on standard input.
import { readFileSync } from 'node:fs';
import { createInterface } from 'node:readline';

import { verifyAgentCardSignature } from '@a2a-js/sdk';
import {
  ClientFactory, DefaultAgentCardResolver, JsonRpcTransportFactory, RestTransportFactory,
  createAuthenticatingFetchWithRetry,
} from '@a2a-js/sdk/client';

import { Cases, RUNTIME } from './cases.mjs';
import { raises, want } from './want.mjs';

const PATIENCE = 180_000;
const CARD = '.well-known/agent-card.json';
const manifest = new URL('./node_modules/@a2a-js/sdk/package.json', import.meta.url);
const sdk = JSON.parse(readFileSync(manifest, 'utf8')).version;
console.debug = () => {}; // the SDK says there why a signature did not verify

const line = (value) => process.stdout.write(`${JSON.stringify(value)}\n`);

async function run(version, binding, name, action) {
  let error = '';
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`no end after ${PATIENCE} ms`)), PATIENCE);
  });
  try {
    await Promise.race([action(), late]);
  } catch (e) {
    error = `${e.name}: ${e.message}`;
  } finally {
    clearTimeout(timer);
  }
  line({ client: 'js', sdk, version, binding, case: name, ok: error === '', error });
  return error === '';
}

const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const { agent, token, keys } = JSON.parse((await lines.next()).value);
const fetchImpl = createAuthenticatingFetchWithRetry(fetch, {
  headers: async () => ({ Authorization: `Bearer ${token}` }),
  shouldRetryWithHeaders: async () => undefined,
});
const legacyCompat = { enabled: true };

const cardResolver = new DefaultAgentCardResolver({ fetchImpl, legacyCompat });

// The resolver needs a relative path: it takes /.well-known/… for the origin's.
const cardPath = (version) => (version === '0.3' ? '.well-known/agent.json' : CARD);

// clientFor resolves the card of a version and picks a binding of it.
async function clientFor(version, binding) {
  const factory = new ClientFactory({
    transports: [new JsonRpcTransportFactory({ fetchImpl, legacyCompat }), new RestTransportFactory({ fetchImpl, legacyCompat })],
    cardResolver,
    preferredTransports: [binding],
  });
  return factory.createFromUrl(`${agent}/`, cardPath(version));
}

async function checkCard(version) {
  const card = await cardResolver.resolve(`${agent}/`, cardPath(version));
  for (const binding of ['JSONRPC', 'HTTP+JSON']) {
    const found = card.supportedInterfaces.some(
      (i) => i.protocolBinding === binding && i.protocolVersion.startsWith(version) && i.url === agent,
    );
    want(found, `${binding} ${version}`, card.supportedInterfaces);
  }
  want(card.name === 'interop' && card.description && card.version && card.skills[0].id, 'a whole card', card);
  want(card.capabilities.streaming && card.capabilities.pushNotifications, 'true capabilities', card.capabilities);
  const runtime = card.capabilities.extensions.filter((e) => e.uri === RUNTIME);
  want(runtime.length === 1 && runtime[0].required, 'runtime/v1 required', card.capabilities);
  want(agent.endsWith(runtime[0].params.instance_id), 'the instance id', runtime[0].params);
  want(card.securitySchemes.bearer.scheme.value.scheme.toLowerCase() === 'bearer', 'the scheme', card.securitySchemes);
}

async function publicKey(kid, jku) {
  want(jku === keys, 'the address of the key set', jku);
  const set = await (await fetch(jku)).json();
  const { kty, crv, x } = set.keys.find((k) => k.kid === kid);
  return crypto.subtle.importKey('jwk', { kty, crv, x }, { name: 'Ed25519' }, true, ['verify']);
}

// checkSignature verifies the card as it was served.
async function checkSignature() {
  const verify = verifyAgentCardSignature(publicKey);
  const card = await (await fetchImpl(`${agent}/${CARD}`)).json();
  await verify(card);
  card.description += '!';
  await raises(/No valid signatures/, verify(card));
}

// checkSignatureParsed verifies it as the SDK's resolver hands it out.
async function checkSignatureParsed() {
  await verifyAgentCardSignature(publicKey)(await cardResolver.resolve(`${agent}/`, CARD));
}

const all = [];
for (const version of ['1.0', '0.3']) {
  if (!(await run(version, 'card', 'card', () => checkCard(version)))) {
    continue;
  }
  if (version === '1.0') {
    await run(version, 'card', 'card-unauthenticated', () => raises(/401/, new DefaultAgentCardResolver().resolve(`${agent}/`, CARD)));
    await run(version, 'card', 'card-signature', checkSignature);
    await run(version, 'card', 'card-signature-parsed', checkSignatureParsed);
  }
  for (const binding of ['JSONRPC', 'HTTP+JSON']) {
    all.push(new Cases(agent, await clientFor(version, binding), binding, version));
  }
}
for (const cases of all) {
  for (const name of Cases.names) {
    await run(cases.version, cases.binding, name, () => cases.run(name));
  }
}
const begun = [];
for (const cases of all) {
  if (await run(cases.version, cases.binding, 'restart-begun', () => cases.run('restart-begun'))) {
    begun.push(cases);
  }
}
line({ barrier: 'restart' });
await lines.next();
for (const cases of begun) {
  await run(cases.version, cases.binding, 'restart', () => cases.run('restart'));
}
process.exit(0);
