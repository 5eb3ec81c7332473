// A small sandbox-agent-runner: reads one request file and says what it would
// do (mode "plan") or what it thinks of it (mode "assess"). It changes
// nothing, so both modes are safe to run unattended.
//
//   node .aiwg/ops/adapters/sandbox-agent-runner/runner.mjs --request <path>
//
// The mode comes from AIWG_A2A_ADAPTER_MODE. Exit status: 0 done, 2 the call
// or the request file is wrong, 3 the request cannot be carried out within
// its own limits.

import { readFile, access } from 'node:fs/promises';

class Refusal extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

function requestPath(args) {
  if (args.length !== 2 || args[0] !== '--request') {
    throw new Refusal(2, 'usage: runner.mjs --request <path>');
  }
  return args[1];
}

async function readRequest(path) {
  let text;
  try {
    text = await readFile(path, 'utf8');
  } catch (err) {
    throw new Refusal(2, `cannot read request ${path}: ${err.code ?? err.message}`);
  }
  let request;
  try {
    request = JSON.parse(text);
  } catch (err) {
    throw new Refusal(2, `cannot parse request ${path}: ${err.message}`);
  }
  if (typeof request.objective !== 'string' || !Array.isArray(request.steps)) {
    throw new Refusal(2, `request ${path}: want "objective" (text) and "steps" (list)`);
  }
  return request;
}

async function present(path) {
  return access(path).then(() => true, () => false);
}

async function plan(request) {
  console.log(`plan for cycle ${request.cycle}: ${request.objective}`);
  for (const [i, step] of request.steps.entries()) {
    const inputs = await Promise.all((step.inputs ?? []).map(async (p) => `${p} (${(await present(p)) ? 'there' : 'missing'})`));
    console.log(`  ${i + 1}. ${step.title} [${step.minutes} min]${inputs.length ? ` <- ${inputs.join(', ')}` : ''}`);
  }
}

async function assess(request) {
  const inputs = request.steps.flatMap((step) => step.inputs ?? []);
  const missing = [];
  for (const path of inputs) {
    if (!(await present(path))) missing.push(path);
  }
  console.log(`assessment of cycle ${request.cycle}: ${request.steps.length} steps, ${inputs.length} inputs, ${missing.length} missing`);
  for (const path of missing) console.error(`warning: ${path} is not in the workspace`);
}

function checkLimits(request) {
  const minutes = request.steps.reduce((sum, step) => sum + (step.minutes ?? 0), 0);
  const limit = request.limits?.minutes ?? Infinity;
  console.error(`node ${process.version} on ${process.platform}, ${minutes} of ${limit} minutes planned`);
  if (minutes > limit) {
    throw new Refusal(3, `the steps need ${minutes} minutes, the request allows ${limit}`);
  }
}

const modes = { plan, assess };

try {
  const mode = process.env.AIWG_A2A_ADAPTER_MODE ?? '';
  if (!Object.hasOwn(modes, mode)) {
    throw new Refusal(2, `AIWG_A2A_ADAPTER_MODE is "${mode}", want plan or assess`);
  }
  const request = await readRequest(requestPath(process.argv.slice(2)));
  await modes[mode](request);
  checkLimits(request);
  console.log('done: nothing was changed');
} catch (err) {
  console.error(`error: ${err.message}`);
  process.exitCode = err instanceof Refusal ? err.status : 1;
}
