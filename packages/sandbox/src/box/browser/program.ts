import { Socket } from 'node:net';
import type { BrowserRequest, BrowserView } from '../../api/tools.ts';
import { Chromium } from './chromium.ts';
import { Page } from './page.ts';

/*
 * A program that operates a browser in the sandbox of a session. Its only argument is the browser. It reads `<nonce> <length>` and then a
 * request as JSON from file descriptor 3. It answers on the same descriptor with the view of the page as JSON, as the protocol of an
 * interpreter requires.
 *
 * It imports only modules of Node and files of floe that do the same, because the sandbox contains nothing else.
 */

/** Descriptor of the requests and answers. */
const CONTROL = 3;
const program = process.argv[2] ?? '';
const control = new Socket({ fd: CONTROL, readable: true, writable: true });
let received = Buffer.alloc(0);
let running: Promise<void> = Promise.resolve();
let browser: { readonly chromium: Chromium; readonly page: Page } | null = null;

// A signal that interrupts a run also ends the browser, which is in the same process group. The end of the browser then ends the run.
process.on('SIGINT', () => {});
control.on('error', end);
control.on('close', end);
control.on('data', (chunk: Buffer) => {
  received = Buffer.concat([received, chunk]);
  for (let request = takeRequest(); request !== null; request = takeRequest()) {
    const { nonce, body } = request;
    running = running.then(() => answer(nonce, body));
  }
});

/** Takes a whole request from what has been received; `null` when there is none. */
function takeRequest(): { readonly nonce: string; readonly body: Buffer } | null {
  const at = received.indexOf('\n');
  if (at < 0) return null;
  const [nonce = '', length = ''] = received.toString('latin1', 0, at).split(' ');
  const bodyEnd = at + 1 + Number(length);
  if (received.length < bodyEnd) return null;
  const body = received.subarray(at + 1, bodyEnd);
  received = received.subarray(bodyEnd);
  return { nonce, body };
}

async function answer(nonce: string, body: Buffer): Promise<void> {
  control.write(`A ${nonce}\n`);
  // The first request is empty: it asks only whether the program runs.
  const view = body.length === 0 ? null : await perform(JSON.parse(body.toString()) as BrowserRequest);
  const detail = view === null ? Buffer.alloc(0) : Buffer.from(JSON.stringify(view));
  for (const output of [process.stdout, process.stderr]) output.write(`\x1e${nonce}`);
  control.write(Buffer.concat([Buffer.from(`E ${nonce} ${view?.failed === true ? 1 : 0} ${detail.length}\n`), detail]));
}

/** Does an action. When the browser has ended or hangs, it is ended, and the next action starts another one. Never rejects. */
async function perform(request: BrowserRequest): Promise<BrowserView> {
  try {
    browser ??= await start(request);
    if (browser.chromium.hasEnded) throw new Error('the browser has ended');
    return await browser.page.perform(request);
  } catch (error) {
    await browser?.chromium.end();
    browser = null;
    const text = `Error: ${(error as Error).message}. The next action starts a new browser with an empty page and without cookies.`;
    return { text, image: null, failed: true };
  }
}

async function start({ screen, isLocal }: BrowserRequest): Promise<NonNullable<typeof browser>> {
  const chromium = await Chromium.start({ program, screen, isLocal });
  return { chromium, page: new Page(chromium) };
}

function end(): void {
  const ended = browser === null ? Promise.resolve() : browser.chromium.end();
  void ended.finally(() => process.exit(0));
}
