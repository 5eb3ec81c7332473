// A receiver of push notifications on loopback.
import { createServer } from 'node:http';

export class Webhook {
  #told = [];
  #waiting = [];

  // open listens; url is where to send to.
  async open() {
    this.server = createServer((request, response) => {
      const chunks = [];
      request.on('data', (c) => chunks.push(c));
      request.on('end', () => {
        this.#deliver({ headers: request.headers, body: JSON.parse(Buffer.concat(chunks).toString()) });
        response.writeHead(204).end();
      });
    });
    await new Promise((resolve) => this.server.listen(0, '127.0.0.1', resolve));
    this.url = `http://127.0.0.1:${this.server.address().port}/told`;
    return this;
  }

  #deliver(one) {
    const waiting = this.#waiting.shift();
    if (waiting) {
      waiting(one);
    } else {
      this.#told.push(one);
    }
  }

  // next is what was told next, in order.
  next() {
    return this.#told.length > 0 ? Promise.resolve(this.#told.shift()) : new Promise((resolve) => this.#waiting.push(resolve));
  }

  close() {
    this.server.close();
    this.server.closeAllConnections();
  }
}
