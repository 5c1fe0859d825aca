import { sleep, systemClock } from '@floe-rl/core';
import type { BrowserAction, BrowserPlace, BrowserRequest, BrowserView } from '../../api/tools.ts';
import { pageLines } from './accessibility.ts';
import type { Chromium } from './chromium.ts';
import { DevToolsError, type DevToolsValue } from './devtools.ts';
import { parseKeys } from './keys.ts';

/** Time in milliseconds that a page has to react to an input before it is shown, in addition to two frames. */
const SETTLE_MS = 60;
/** Maximum number of characters of a screenshot in base64. A larger one is taken once more as JPEG. */
const MAX_IMAGE_CHARS = 3 * 1024 * 1024;
const JPEG_QUALITY = 60;
/** Maximum number of elements of a page that is shown as lines. Of a larger page only the text is shown. */
const MAX_ELEMENTS = 20_000;
/** Maximum number of frames in a page that are shown as text. */
const MAX_FRAMES = 8;
/** Maximum number of characters of a page's text that are shown at once. */
const MAX_TEXT_CHARS = 12_000;
/** Maximum number of characters of a title, an address or a message. */
const MAX_LINE_CHARS = 300;
/** Schemes of addresses that can be opened. Addresses with other schemes open pages of the browser itself or run code. */
const SCHEMES = ['http:', 'https:', 'data:', 'about:'];

/** An action that cannot be done as requested. The message is for the agent, and the page is shown nevertheless. */
class ActionError extends Error {}

/** Waits for two frames, so that the page has drawn what an input changed. */
const TWO_FRAMES = 'new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(0))))';
/** Maximum time in milliseconds to wait for frames: a page in the background draws none. */
const FRAMES_MS = 500;
/**
 * JavaScript function that chooses the option with a name in the focused list. It returns null when no list is focused, an error text when the
 * option cannot be chosen, and otherwise an empty text.
 */
const CHOOSE_OPTION = `(name) => {
  let element = document.activeElement;
  while (element && (element.shadowRoot || element.tagName === 'IFRAME')) {
    const inner = element.shadowRoot || element.contentDocument;
    if (!inner || !inner.activeElement) break;
    element = inner.activeElement;
  }
  if (!element || element.tagName !== 'SELECT') return null;
  const option = [...element.options].find(({ label }) => label.trim() === name.trim());
  if (!option) return 'the list has only: ' + [...element.options].map(({ label }) => label).join(', ').slice(0, 500);
  option.selected = true;
  for (const type of ['input', 'change']) element.dispatchEvent(new Event(type, { bubbles: true }));
  return '';
}`;

/** Does actions in a browser and shows its page: as an image, as text with numbered elements, or both. */
export class Page {
  private readonly chromium: Chromium;
  /** DevTools ids of the elements by the numbers that the last text showed. */
  private elements: readonly number[] = [];
  /**
   * The next fields are the number of the first shown line, the number of the line after the last shown line, and the address of the page with
   * these lines.
   */
  private firstLine = 0;
  private nextLine = 0;
  private shownUrl = '';

  constructor(chromium: Chromium) {
    this.chromium = chromium;
  }

  /** Does an action and resolves with the page after it. Rejects with a {@link DevToolsError} when the browser ends or the page hangs. */
  async perform(request: BrowserRequest): Promise<BrowserView> {
    const { chromium } = this;
    chromium.limitMs = request.loadMs;
    await chromium.ensureTab();
    let problem: string | null = null;
    try {
      await this.act(request);
      await this.settle(request.loadMs);
    } catch (error) {
      if (!(error instanceof ActionError || (error instanceof DevToolsError && error.reason === 'refused')))
        throw error;
      problem = error.message;
      await chromium.ensureTab();
    }
    const view = await this.viewSoon(request);
    const notes = [
      ...(problem === null ? [] : [`Error: ${problem}`]),
      ...chromium.takeNotes().map((note) => `[${note}]`),
    ];
    return { ...view, text: [...notes, view.text].join('\n'), failed: problem !== null };
  }

  private async act({ action, loadMs, screen, opensFiles }: BrowserRequest): Promise<void> {
    switch (action.action) {
      case 'screenshot':
        return;
      case 'wait':
        return sleep(systemClock, action.ms);
      case 'goto':
        return this.open(action.url, opensFiles ? [...SCHEMES, 'file:'] : SCHEMES, loadMs);
      case 'click':
        return this.click(await this.pointOf(action.place), action.count);
      case 'type':
        return this.type(action);
      case 'key':
        return this.press(action.keys);
      case 'scroll': {
        const center = { x: Math.floor(screen.width / 2), y: Math.floor(screen.height / 2) };
        const { x, y } = action.place === null ? center : await this.pointOf(action.place);
        this.moveLines(action.dy);
        await this.mouse('mouseWheel', x, y, { deltaX: action.dx, deltaY: action.dy });
      }
    }
  }

  private async open(url: string, schemes: readonly string[], loadMs: number): Promise<void> {
    if (!URL.canParse(url))
      throw new ActionError(`${cut(url)} is no address; it must begin with a scheme such as http://`);
    const { protocol } = new URL(url);
    if (!schemes.includes(protocol)) throw new ActionError(`addresses with ${protocol} cannot be opened`);
    const { chromium } = this;
    const loads = chromium.tab?.loads ?? 0;
    const endMs = systemClock.monotonicMs() + loadMs;
    let result: DevToolsValue;
    try {
      result = await chromium.send('Page.navigate', { url });
    } catch (error) {
      if (!(error instanceof DevToolsError) || error.reason !== 'late') throw error;
      await chromium.send('Page.stopLoading');
      throw new ActionError(`${cut(url)} did not answer within ${loadMs / 1000} s`);
    }
    const { errorText, loaderId } = result;
    if (errorText !== undefined) throw new ActionError(`cannot open ${cut(url)}: ${String(errorText)}`);
    // Nothing is loaded when the new address differs from the old one only in its fragment.
    if (loaderId === undefined) return;
    await chromium.until(() => (chromium.tab?.loads ?? 0) !== loads, endMs - systemClock.monotonicMs());
  }

  private async click({ x, y }: Point, count: number): Promise<void> {
    await this.mouse('mouseMoved', x, y, {});
    for (let clickCount = 1; clickCount <= count; clickCount++) {
      await this.mouse('mousePressed', x, y, { button: 'left', clickCount });
      await this.mouse('mouseReleased', x, y, { button: 'left', clickCount });
    }
  }

  private async type({ text, place }: Extract<BrowserAction, { readonly action: 'type' }>): Promise<void> {
    if (place !== null) await this.focus(place);
    const expression = `(${CHOOSE_OPTION})(${JSON.stringify(text)})`;
    const chosen = await this.evaluate(expression);
    if (typeof chosen === 'string') {
      // The click has opened the list, which covers a part of the page. Escape closes it.
      if (place !== null && !('element' in place)) await this.press('Escape');
      if (chosen !== '') throw new ActionError(chosen);
      return;
    }
    for (const [index, line] of text.split('\n').entries()) {
      if (index > 0) await this.press('Enter');
      if (line !== '') await this.chromium.input('Input.insertText', { text: line });
    }
  }

  private async focus(place: BrowserPlace): Promise<void> {
    if (!('element' in place)) return this.click(place, 1);
    const backendNodeId = this.nodeOf(place.element);
    // Some elements cannot have the focus, but pass a click on to an element that can, as a label does.
    await this.chromium.send('DOM.focus', { backendNodeId }).catch(async (error: unknown) => {
      if (!(error instanceof DevToolsError) || error.reason !== 'refused') throw error;
      await this.click(await this.pointOf(place), 1);
    });
  }

  private async press(keys: string): Promise<void> {
    const press = parseKeys(keys);
    if (press === null) {
      throw new ActionError(
        `there is no key ${JSON.stringify(cut(keys))}; names are such as Enter, Tab, PageDown, a and ctrl+a`,
      );
    }
    const { key, modifiers } = press;
    const common = { key: key.key, code: key.code, windowsVirtualKeyCode: key.keyCode, modifiers };
    const text = key.text === null ? {} : { text: key.text, unmodifiedText: key.text };
    const type = key.text === null ? 'rawKeyDown' : 'keyDown';
    await this.chromium.input('Input.dispatchKeyEvent', { type, ...common, ...text });
    await this.chromium.input('Input.dispatchKeyEvent', { type: 'keyUp', ...common });
  }

  private async mouse(type: string, x: number, y: number, more: object): Promise<void> {
    await this.chromium.input('Input.dispatchMouseEvent', { type, x, y, ...more });
  }

  /** Returns the middle of a place, after it has been scrolled into view. */
  private async pointOf(place: BrowserPlace): Promise<Point> {
    if (!('element' in place)) return place;
    const backendNodeId = this.nodeOf(place.element);
    try {
      await this.chromium.send('DOM.scrollIntoViewIfNeeded', { backendNodeId });
      const { quads } = await this.chromium.send('DOM.getContentQuads', { backendNodeId });
      const [quad] = (quads ?? []) as readonly (readonly number[])[];
      if (quad !== undefined) return { x: middle(quad, 0), y: middle(quad, 1) };
    } catch (error) {
      if (!(error instanceof DevToolsError) || error.reason !== 'refused') throw error;
    }
    throw new ActionError(`the element ${place.element} is not visible, or no longer part of the page`);
  }

  private nodeOf(element: number): number {
    const node = this.elements[element - 1];
    if (node === undefined)
      throw new ActionError(`there is no element ${element}; the last text of the page has the numbers`);
    return node;
  }

  /** Waits until the page has reacted to an action, and has loaded where the action opened another page. */
  private async settle(loadMs: number): Promise<void> {
    const { chromium } = this;
    const wait = { expression: TWO_FRAMES, awaitPromise: true };
    // Without a result, another page may have replaced the waiting page. When the page hangs, the next commands fail.
    const drawn = chromium.send('Runtime.evaluate', wait).catch(() => {});
    await Promise.race([drawn, sleep(systemClock, FRAMES_MS)]);
    await sleep(systemClock, SETTLE_MS);
    await chromium.ensureTab();
    await chromium.until(() => chromium.tab?.isLoading !== true, loadMs);
  }

  /** Shows the page. When the page is replaced meanwhile, as by a script that opens another address, shows the new page. */
  private async viewSoon(request: BrowserRequest): Promise<Pick<BrowserView, 'text' | 'image'>> {
    try {
      return await this.view(request);
    } catch (error) {
      if (!(error instanceof DevToolsError) || error.reason !== 'refused') throw error;
      await this.settle(request.loadMs);
      return this.view(request);
    }
  }

  private async view({ views, screen }: BrowserRequest): Promise<Pick<BrowserView, 'text' | 'image'>> {
    const { chromium } = this;
    const frames = await this.frames();
    const [{ title = '', url = '' } = {}] = frames;
    if (url !== this.shownUrl) this.firstLine = 0;
    this.shownUrl = url;
    const about = `${cut(title) === '' ? 'no title' : cut(title)}: ${cut(url)}${chromium.tab?.isLoading === true ? ' (still loading)' : ''}`;
    const lines = views.text ? await this.text(frames) : [await this.scrollNote(screen.height)];
    const image = views.image ? await this.screenshot() : null;
    return { text: [about, ...lines].filter((line) => line !== '').join('\n'), image };
  }

  private async screenshot(): Promise<NonNullable<BrowserView['image']>> {
    const { data } = await this.chromium.send('Page.captureScreenshot', { format: 'png' });
    const png = String(data);
    if (png.length <= MAX_IMAGE_CHARS) return { type: 'image/png', data: png };
    const jpeg = await this.chromium.send('Page.captureScreenshot', { format: 'jpeg', quality: JPEG_QUALITY });
    return { type: 'image/jpeg', data: String(jpeg.data) };
  }

  /** Returns how far the page is scrolled; empty when it fits on the screen. */
  private async scrollNote(height: number): Promise<string> {
    const { cssContentSize, cssVisualViewport } = await this.chromium.send('Page.getLayoutMetrics');
    const total = Math.round(Number((cssContentSize as { readonly height?: unknown } | undefined)?.height ?? 0));
    const top = Math.round(Number((cssVisualViewport as { readonly pageY?: unknown } | undefined)?.pageY ?? 0));
    return total <= height ? '' : `[pixels ${top} to ${Math.min(total, top + height)} of ${total} are shown]`;
  }

  /** Returns the part of the page's text that is shown, and remembers the numbers of its elements. */
  private async text(frames: readonly Frame[]): Promise<string[]> {
    const { chromium } = this;
    const count = Number(await this.evaluate('document.getElementsByTagName("*").length'));
    this.elements = [];
    if (count > MAX_ELEMENTS) {
      const start = await this.evaluate(`document.documentElement.textContent.slice(0, ${MAX_TEXT_CHARS})`);
      const text = String(start).slice(0, MAX_TEXT_CHARS);
      return [`[the page has ${count} elements, too many to be numbered; this is the start of its text]`, text];
    }
    const elements: number[] = [];
    const lines: string[] = [];
    for (const [index, { id, url }] of frames.slice(0, MAX_FRAMES).entries()) {
      const tree = await chromium.send('Accessibility.getFullAXTree', { frameId: id });
      if (index > 0) lines.push(`frame ${cut(url)}`);
      for (const { text, nodeId } of pageLines(tree, elements.length + 1)) {
        lines.push(text);
        if (nodeId !== null) elements.push(nodeId);
      }
    }
    this.elements = elements;
    return this.linesShown(lines);
  }

  private linesShown(lines: readonly string[]): string[] {
    let chars = 0;
    this.firstLine = Math.max(0, Math.min(this.firstLine, lines.length - 1));
    const rest = lines.slice(this.firstLine);
    const over = rest.findIndex((line) => {
      chars += line.length + 1;
      return chars > MAX_TEXT_CHARS;
    });
    const shown = over < 0 ? rest : rest.slice(0, Math.max(1, over));
    this.nextLine = this.firstLine + shown.length;
    const isWhole = this.firstLine === 0 && shown.length === lines.length;
    const note = `[lines ${this.firstLine + 1} to ${this.nextLine} of ${lines.length}; scroll for others]`;
    return isWhole ? shown : [...shown, note];
  }

  /** Shows the next or the previous lines of a long text. */
  private moveLines(dy: number): void {
    if (dy > 0) this.firstLine = this.nextLine;
    if (dy < 0) this.firstLine = Math.max(0, this.firstLine - (this.nextLine - this.firstLine));
  }

  /** Resolves with the value of an expression in the page. The page controls the value, so it may have any type. */
  private async evaluate(expression: string): Promise<unknown> {
    const { result } = await this.chromium.send('Runtime.evaluate', { expression, returnByValue: true });
    return (result as { readonly value?: unknown } | undefined)?.value;
  }

  /** Returns the page and the frames in it. */
  private async frames(): Promise<readonly Frame[]> {
    const { frameTree } = await this.chromium.send('Page.getFrameTree');
    const title = String((await this.evaluate('document.title')) ?? '');
    const frames: Frame[] = [];
    const waiting = [frameTree as FrameTree];
    for (let next = waiting.shift(); next !== undefined; next = waiting.shift()) {
      frames.push({ id: next.frame.id, url: next.frame.url, title: '' });
      waiting.push(...(next.childFrames ?? []));
    }
    return frames.map((frame, index) => (index === 0 ? { ...frame, title } : frame));
  }
}

type Point = { readonly x: number; readonly y: number };
type Frame = { readonly id: string; readonly url: string; readonly title: string };
type FrameTree = {
  readonly frame: { readonly id: string; readonly url: string };
  readonly childFrames?: readonly FrameTree[];
};

/** Returns the middle of a quadrilateral, whose corners are pairs of coordinates; `offset` is 0 for x and 1 for y. */
function middle(quad: readonly number[], offset: 0 | 1): number {
  const values = quad.filter((_, index) => index % 2 === offset);
  return Math.round(values.reduce((sum, value) => sum + value, 0) / values.length);
}

function cut(text: string): string {
  return text.length > MAX_LINE_CHARS ? `${text.slice(0, MAX_LINE_CHARS)}…` : text;
}
