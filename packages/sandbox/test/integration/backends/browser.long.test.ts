import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { describeIf } from '../../../../../test/skip.ts';
import { chromiumMissing } from '../../../../../verify/services/tools.ts';
import type { Runtime } from '../../../src/api/runtime.ts';
import type {
  BrowserAction,
  BrowserRequest,
  BrowserResult,
  RuntimeTools,
  ToolProcess,
} from '../../../src/api/tools.ts';
import { bubblewrapMissing, never, Workbench } from '../../backends/workbench.ts';

const noChromium = chromiumMissing();
const SCREEN = { width: 400, height: 300 };
const MINUTE = { timeoutMs: 60_000 };

const SHOP = `<title>Shop</title><h1>Tea</h1>
<form action="done.html"><input aria-label="Name"><select aria-label="Size"><option>small<option>large</select>
<label><input type="checkbox"> Gift</label><button type="button" onclick="document.title='bought '+document.querySelector('input').value+' '+document.querySelector('select').value">Buy</button>
<a href="done.html">Done</a></form>`;

/** Starts a web server with pages that never answer, never finish, or answer at once. */
async function startSite(): Promise<Server> {
  const server = createServer((request, response) => {
    if (request.url === '/silent') return;
    response.writeHead(200, { 'content-type': 'text/html' });
    if (request.url === '/endless') response.write(`<h1>Partly</h1>${' '.repeat(2_000)}`);
    else response.end(request.url === '/other' ? '<title>Other</title>' : SHOP);
  });
  await new Promise<void>((resolve) => void server.listen(0, '127.0.0.1', resolve));
  return server;
}

/** A browser in a sandbox. */
class TestBrowser {
  readonly runtime: Runtime;
  private readonly bench: Workbench;
  private readonly tools: RuntimeTools;
  readonly process: ToolProcess<BrowserResult>;

  private constructor(bench: Workbench, runtime: Runtime, tools: RuntimeTools) {
    this.bench = bench;
    this.runtime = runtime;
    this.tools = tools;
    this.process = tools.browser();
  }

  static async open(backend: 'local' | 'bubblewrap'): Promise<TestBrowser> {
    const bench = await Workbench.open();
    const runtime = await bench.start(backend);
    await runtime.writeFiles([{ path: 'shop.html', content: SHOP }], never);
    return new TestBrowser(bench, runtime, await runtime.openTools(never));
  }

  async act(action: BrowserAction, more: Partial<BrowserRequest> = {}) {
    const views = { image: false, text: true };
    const request = { action, screen: SCREEN, isLocal: true, opensFiles: true, views, loadMs: 10_000, ...more };
    const { view } = await this.process.run(JSON.stringify(request), MINUTE, never);
    if (view === null) throw new Error('the process of the browser has ended');
    return view;
  }

  async show(html: string) {
    return this.act({ action: 'goto', url: `data:text/html,${encodeURIComponent(html)}` });
  }

  async close(): Promise<void> {
    await this.tools.close();
    await this.runtime.stop();
    await this.bench.close();
  }
}

describeIf(noChromium ?? (await bubblewrapMissing()), 'a browser in a bubblewrap sandbox', () => {
  it('opens a file of the sandbox and operates it', async () => {
    const browser = await TestBrowser.open('bubblewrap');
    try {
      const shown = await browser.act({ action: 'goto', url: `file://${browser.runtime.paths.workdir}/shop.html` });
      expect(shown).toEqual({ failed: false, image: null, text: expect.stringContaining('[4] button "Buy"') });
      await browser.act({ action: 'type', text: 'Ann', place: { element: 1 } });
      const bought = await browser.act({ action: 'click', place: { element: 4 }, count: 1 });
      expect(bought.text).toContain('bought Ann small');
    } finally {
      await browser.close();
    }
  });
});

describeIf(noChromium, 'a browser in a local sandbox', () => {
  let browser: TestBrowser;
  let site: Server;
  let origin: string;
  beforeAll(async () => {
    browser = await TestBrowser.open('local');
    site = await startSite();
    origin = `http://127.0.0.1:${(site.address() as AddressInfo).port}`;
  });
  afterAll(async () => {
    site.closeAllConnections();
    site.close();
    await browser.close();
  });

  it('shows a page as text with numbered elements and their states', async () => {
    const { text } = await browser.act({ action: 'goto', url: `${origin}/` });
    expect(text).toBe(
      [
        `Shop: ${origin}/`,
        'heading "Tea"',
        '[1] textbox "Name"',
        '[2] combobox "Size" value "small"',
        '  option "small" selected',
        '  option "large"',
        '[3] checkbox "Gift"',
        '[4] button "Buy"',
        '[5] link "Done"',
      ].join('\n'),
    );
  });

  it('types, chooses an option, checks a box and clicks', async () => {
    await browser.act({ action: 'goto', url: `${origin}/` });
    await browser.act({ action: 'type', text: 'Ann', place: { element: 1 } });
    await browser.act({ action: 'key', keys: 'ctrl+a' });
    const typed = await browser.act({ action: 'type', text: 'Bo', place: null });
    expect(typed.text).toContain('[1] textbox "Name" value "Bo" focused');
    expect((await browser.act({ action: 'type', text: 'huge', place: { element: 2 } })).text).toContain(
      'Error: the list has only: small, large',
    );
    await browser.act({ action: 'type', text: 'large', place: { element: 2 } });
    expect((await browser.act({ action: 'click', place: { element: 3 }, count: 1 })).text).toContain(
      '"Gift" focused checked',
    );
    expect((await browser.act({ action: 'click', place: { element: 4 }, count: 1 })).text).toContain('bought Bo large');
  });

  it('gives screenshots of the size of the screen, however large the page is', async () => {
    await browser.show('<body style="height:900000px;width:70000px">');
    const { image, text } = await browser.act({ action: 'screenshot' }, { views: { image: true, text: false } });
    const png = Buffer.from(image?.data ?? '', 'base64');
    expect([png.toString('latin1', 1, 4), png.readUInt32BE(16), png.readUInt32BE(20)]).toEqual(['PNG', 400, 300]);
    expect(text).toContain('[pixels 0 to 300 of 9');
    const scrolled = await browser.act(
      { action: 'scroll', place: { x: 10, y: 10 }, dx: 0, dy: 500 },
      { views: { image: true, text: false } },
    );
    expect(scrolled.text).toContain('[pixels 500 to 800 of');
  });

  it('shows a long text in parts, and only the text of a page with too many elements', async () => {
    const rows = Array.from({ length: 2_000 }, (_, index) => `<p>row ${index}`).join('');
    expect((await browser.show(rows)).text).toMatch(/\[lines 1 to \d+ of 2000; scroll for others\]/);
    const { text } = await browser.act({ action: 'scroll', place: null, dx: 0, dy: 300 });
    expect(text).not.toContain('row 0\n');
    expect(text).toMatch(/\[lines \d{3,} to \d+ of 2000/);
    const huge = await browser.show(
      '<body><script>for (let i = 0; i < 30000; i++) document.body.append(document.createElement("b"))</script>x',
    );
    expect(huge.text).toContain('too many to be numbered');
  });

  it('answers dialogs, and reports them with the next view', async () => {
    await browser.show(
      '<button onclick="document.title = String([alert(1), confirm(`Sure?`), prompt(`Why?`)])">Ask</button>',
    );
    const { text } = await browser.act({ action: 'click', place: { element: 1 }, count: 1 });
    expect(text).toContain('[the page showed a dialog (alert), which was accepted: 1]');
    expect(text).toContain('[the page showed a dialog (confirm), which was accepted: Sure?]');
    expect(text).toContain('(prompt), which was dismissed: Why?]');
    expect(text).toContain(',true,');
  });

  it('follows a new tab, and returns to the first when it closes', async () => {
    await browser.act({ action: 'goto', url: `${origin}/` });
    const script = `<button onclick="window.open('${origin}/other')">Open</button>`;
    await browser.show(script);
    const opened = await browser.act({ action: 'click', place: { element: 1 }, count: 1 });
    expect(opened.text).toContain('[a new tab was opened]');
    const seen = await browser.act({ action: 'screenshot' });
    expect(seen.text).toContain(`Other: ${origin}/other`);
    const closing = await browser.act({
      action: 'goto',
      url: 'data:text/html,<button onclick="window.close()">Close</button>',
    });
    expect(closing.text).toContain('[1] button "Close"');
    const back = await browser.act({ action: 'click', place: { element: 1 }, count: 1 });
    expect(back.text).toContain('[1] button "Open"');
  });

  it('stops waiting for a page that does not answer or never finishes', async () => {
    const silent = await browser.act({ action: 'goto', url: `${origin}/silent` }, { loadMs: 3_000 });
    expect(silent).toMatchObject({ failed: true, text: expect.stringContaining('did not answer within 3 s') });
    const endless = await browser.act({ action: 'goto', url: `${origin}/endless` }, { loadMs: 3_000 });
    expect(endless).toMatchObject({ failed: false, text: expect.stringContaining('heading "Partly"') });
    expect(endless.text).toContain('(still loading)');
  });

  it('opens no addresses outside of the sandbox, and none of the browser itself', async () => {
    for (const [url, reason] of [
      ['http://127.0.0.2/', 'ERR_NAME_NOT_RESOLVED'],
      ['http://example.com/', 'ERR_NAME_NOT_RESOLVED'],
      ['chrome://version', 'cannot be opened'],
      ['javascript:alert(1)', 'cannot be opened'],
      ['nowhere', 'is no address'],
    ] as const) {
      const { failed, text } = await browser.act({ action: 'goto', url });
      expect({ failed, text }).toEqual({ failed: true, text: expect.stringContaining(reason) });
    }
  });

  it('refuses unknown elements and keys, and shows the page nevertheless', async () => {
    await browser.act({ action: 'goto', url: `${origin}/` });
    const missing = await browser.act({ action: 'click', place: { element: 99 }, count: 1 });
    expect(missing).toMatchObject({ failed: true, text: expect.stringContaining('there is no element 99') });
    expect(missing.text).toContain('[1] textbox');
    expect((await browser.act({ action: 'key', keys: 'hyper+x' })).text).toContain('there is no key "hyper+x"');
  });

  it('shows pages that have replaced the functions of JavaScript', async () => {
    const noFrames = 'requestAnimationFrame = setTimeout = () => 0';
    const view = await browser.show(`<title>Frozen</title><script>${noFrames}</script><button>Go</button>`);
    expect(view).toMatchObject({ failed: false, text: expect.stringContaining('[1] button') });
    const longText = "String.prototype.slice = () => 'x'.repeat(1e6)";
    const many = await browser.show(`<script>${longText}; document.write('<b></b>'.repeat(20_001))</script>`);
    expect(many.text).toContain('too many to be numbered');
    expect(many.text.length).toBeLessThan(13_000);
  });

  it('closes a tab that crashed, and opens another', async () => {
    const crashed = await browser.act({ action: 'goto', url: 'data:text/html,x' });
    expect(crashed.failed).toBe(false);
    const main = 'pgrep -o -f "remote-debugging-pipe.*user-data-dir=$HOME"';
    await browser.runtime.exec({ command: `pgrep -P $(${main}) -f type=renderer | xargs kill -9` }, never);
    expect((await browser.act({ action: 'screenshot' })).text).toContain('[the page crashed, and its tab was closed]');
    expect((await browser.act({ action: 'goto', url: `${origin}/` })).text).toContain('Shop');
  });

  it('replaces a browser that hangs or was killed', async () => {
    const hung = await browser.show('<title>busy</title><button onclick="for(;;);">Loop</button>');
    expect(hung.failed).toBe(false);
    const late = await browser.act({ action: 'click', place: { element: 1 }, count: 1 }, { loadMs: 1_500 });
    expect(late).toMatchObject({ failed: true, text: expect.stringContaining('starts a new browser') });
    expect((await browser.act({ action: 'goto', url: `${origin}/` })).text).toContain('Shop');
    const main = 'pgrep -o -f "remote-debugging-pipe.*user-data-dir=$HOME"';
    await browser.runtime.exec({ command: `kill -9 $(${main})` }, never);
    const killed = await browser.act({ action: 'screenshot' });
    expect(killed).toMatchObject({ failed: true, text: expect.stringContaining('the browser has ended') });
    expect((await browser.act({ action: 'goto', url: `${origin}/` })).text).toContain('Shop');
  });

  it('replaces a browser that was killed even if its files cannot be removed', async () => {
    expect((await browser.act({ action: 'goto', url: `${origin}/` })).text).toContain('Shop');
    const main = 'pgrep -o -f "remote-debugging-pipe.*user-data-dir=$HOME"';
    // Another process adds files to the folder of the browser's profile for longer than its removal is repeated.
    const adding = browser.runtime.exec(
      {
        command:
          'cd $HOME/.floe-browser-*; p=$PWD; end=$(($(date +%s) + 8)); while [ $(date +%s) -lt $end ]; do mkdir -p $p/a/$RANDOM; done',
      },
      never,
    );
    await browser.runtime.exec({ command: `kill -9 $(${main})` }, never);
    expect(await browser.act({ action: 'screenshot' })).toMatchObject({ failed: true });
    expect((await browser.act({ action: 'goto', url: `${origin}/` })).text).toContain('Shop');
    await adding;
  });

  it('names the missing browser', async () => {
    const tools = await browser.runtime.openTools(never);
    const run = tools.browser({ program: 'no-browser' }).run('{}', MINUTE, never);
    await expect(run).rejects.toMatchObject({ reason: 'unavailable', message: expect.stringContaining('no-browser') });
    await tools.close();
  });
});
