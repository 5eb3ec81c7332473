// A runner for tests of clients: what it does is named by the request. The
// text of the message names the mark that a held command waits for.
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { createInterface } from 'node:readline';

const request = JSON.parse(readFileSync(process.argv[process.argv.indexOf('--request') + 1], 'utf8'));
const mark = `.aiwg/ops/runs/released-${process.env.AIWG_A2A_MESSAGE}`;

const actions = {
  lines() {
    for (const line of ['one', 'two', 'three']) {
      console.log(line);
    }
  },
  ask() {
    process.stdout.write('Continue? [y/N] ');
    const lines = createInterface({ input: process.stdin });
    lines.once('line', (answer) => {
      console.log(`answer <${answer}>`);
      lines.close();
      process.exit(answer === 'y' ? 0 : 1);
    });
  },
  hold() {
    console.log('begun');
    const timer = setInterval(() => {
      if (existsSync(mark)) {
        clearInterval(timer);
        console.log('ended');
      }
    }, 50);
  },
  release() {
    writeFileSync(mark, '');
  },
};
actions[request.do]();
