import { type ChildProcess, spawn } from 'node:child_process';
import { mkdtempSync } from 'node:fs';
import { rm } from 'node:fs/promises';
import { homedir, tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Readable, Writable } from 'node:stream';
import { systemClock } from '@floe-rl/core';
import { DevTools, DevToolsError, type DevToolsEvent, type DevToolsValue } from './devtools.ts';

/** Maximum time in milliseconds for the start of the browser. */
const START_MS = 45_000;
/** Maximum time in milliseconds for commands that do not depend on what a page does. */
const COMMAND_MS = 10_000;
/** Number of characters of the browser's error output, taken from its end, that an error message quotes. */
const STDERR_CHARS = 600;
/** Maximum number of notes about a page that are kept for the next reply. */
const MAX_NOTES = 5;
const MAX_NOTE_CHARS = 300;

const FLAGS = [
  '--headless=new',
  '--remote-debugging-pipe',
  // The sandbox of the session already isolates the browser, and has no user namespaces for a sandbox of the browser's own.
  '--no-sandbox',
  '--no-zygote',
  '--disable-gpu',
  '--disable-dev-shm-usage',
  // Frames of other sites share the process of their page, so that one connection reaches them.
  '--disable-features=IsolateOrigins,site-per-process,Translate,MediaRouter,OptimizationHints',
  '--disable-site-isolation-trials',
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-default-apps',
  '--disable-extensions',
  '--disable-sync',
  '--disable-breakpad',
  '--no-first-run',
  '--no-default-browser-check',
  '--no-pings',
  '--metrics-recording-only',
  '--password-store=basic',
  '--use-mock-keychain',
  '--mute-audio',
  '--hide-scrollbars',
  '--force-color-profile=srgb',
  '--font-render-hinting=none',
  '--lang=en-US',
];
/** Options of a browser that may reach only pages of the sandbox, although the sandbox's network may reach more. */
const LOCAL_FLAGS = [
  '--no-proxy-server',
  '--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE localhost, EXCLUDE 127.0.0.1, EXCLUDE [::1]',
];

export type Screen = { readonly width: number; readonly height: number };

type ChromiumOptions = { readonly program: string; readonly screen: Screen; readonly isLocal: boolean };

/** A tab of the browser. */
export type Tab = {
  readonly targetId: string;
  readonly sessionId: string;
  /** Whether the page in the tab is being loaded. */
  isLoading: boolean;
  /** Number of pages that have finished loading. */
  loads: number;
};

/** A Chromium with its tabs. Actions go to the tab that was opened last. */
export class Chromium {
  private readonly child: ChildProcess;
  private readonly devtools: DevTools;
  private readonly screen: Screen;
  private readonly profile: string;
  private tabs: Tab[] = [];
  private notes: string[] = [];
  /** Calls that wait for a change of a tab. */
  private waiters: (() => void)[] = [];
  hasEnded = false;
  /** Maximum time in milliseconds for a command to a tab, after which its page counts as unresponsive. */
  limitMs = COMMAND_MS;

  private constructor(child: ChildProcess, profile: string, screen: Screen) {
    this.child = child;
    this.profile = profile;
    this.screen = screen;
    const [, , , input, output] = child.stdio;
    this.devtools = new DevTools(
      input as Writable,
      output as Readable,
      (event) => this.receive(event),
      () => void this.end(),
    );
  }

  /** Starts the browser with an empty tab. Rejects when it does not start. */
  static async start({ program, screen, isLocal }: ChromiumOptions): Promise<Chromium> {
    const profile = mkdtempSync(join(homedir(), '.floe-browser-'));
    const args = [
      ...FLAGS,
      ...(isLocal ? LOCAL_FLAGS : []),
      `--user-data-dir=${profile}`,
      `--window-size=${screen.width},${screen.height}`,
      'about:blank',
    ];
    // The path of a socket that the browser makes in its temporary directory may have 107 bytes, so it is relative.
    const env = { ...process.env, TMPDIR: '.' };
    const child = spawn(program, args, { cwd: tmpdir(), env, stdio: ['ignore', 'ignore', 'pipe', 'pipe', 'pipe'] });
    let stderr = '';
    child.stderr?.on('data', (chunk: Buffer) => {
      stderr = `${stderr}${chunk.toString()}`.slice(-STDERR_CHARS);
    });
    child.on('error', (error) => {
      stderr = error.message;
    });
    const chromium = new Chromium(child, profile, screen);
    try {
      await chromium.prepare();
      return chromium;
    } catch (error) {
      await chromium.end();
      throw new Error(`the browser did not start: ${(error as Error).message}. ${stderr.trim()}`);
    }
  }

  /** The tab that was opened last; `null` when none is open. */
  get tab(): Tab | null {
    return this.tabs.at(-1) ?? null;
  }

  /** Sends a command to the current tab. Rejects with a {@link DevToolsError}. */
  async send(method: string, params: object = {}): Promise<DevToolsValue> {
    const { tab } = this;
    if (tab === null) throw new DevToolsError('refused', 'no tab is open');
    return this.devtools.send(method, params, tab.sessionId, this.limitMs);
  }

  /**
   * Sends an input to the current tab. When the input opens another tab, does not wait for its effect, because a tab in the background handles
   * no input.
   */
  async input(method: string, params: object): Promise<void> {
    const { tab } = this;
    const handled = this.send(method, params).then(() => true);
    const changed = this.until(() => this.tab !== tab, this.limitMs);
    await Promise.race([handled, changed.then((isChanged) => (isChanged ? true : handled))]);
  }

  /** Opens an empty tab when none is open, as after a crash. */
  async ensureTab(): Promise<void> {
    if (this.tab === null) await this.devtools.send('Target.createTarget', { url: 'about:blank' }, null, COMMAND_MS);
    await this.until(() => this.tab !== null, COMMAND_MS);
  }

  /**
   * Waits until a condition holds or the time has passed. The condition is checked at every change of a tab. Resolves with whether it holds.
   */
  async until(holds: () => boolean, timeoutMs: number): Promise<boolean> {
    const endMs = systemClock.monotonicMs() + timeoutMs;
    while (!holds() && !this.hasEnded) {
      const leftMs = endMs - systemClock.monotonicMs();
      if (leftMs <= 0) return false;
      await new Promise<void>((resolve) => {
        const cancel = systemClock.schedule(leftMs, resolve);
        this.waiters.push(() => {
          cancel();
          resolve();
        });
      });
    }
    return holds();
  }

  /** Returns notes about events since the last call that no action asked for, such as dialogs of pages. */
  takeNotes(): string[] {
    const { notes } = this;
    this.notes = [];
    return notes;
  }

  /** Ends the browser. May be called twice. */
  async end(): Promise<void> {
    if (this.hasEnded) return;
    this.hasEnded = true;
    this.tabs = [];
    this.wake();
    this.child.kill('SIGKILL');
    if (this.child.exitCode === null && this.child.signalCode === null && this.child.pid !== undefined) {
      await new Promise<void>((resolve) => void this.child.once('exit', () => resolve()));
    }
    // Processes of the browser that end a little later can still write to the directory. What is left is removed with the sandbox.
    await rm(this.profile, { recursive: true, force: true, maxRetries: 3, retryDelay: 50 }).catch(() => {});
  }

  private async prepare(): Promise<void> {
    const send = (method: string, params: object) => this.devtools.send(method, params, null, START_MS);
    await send('Browser.setDownloadBehavior', { behavior: 'deny' });
    const filter = [{ type: 'page' }];
    await send('Target.setAutoAttach', { autoAttach: true, waitForDebuggerOnStart: false, flatten: true, filter });
    if (!(await this.until(() => this.tab !== null, START_MS))) throw new Error('it opened no tab');
  }

  private receive({ method, params, sessionId }: DevToolsEvent): void {
    const tab = this.tabs.find((known) => known.sessionId === sessionId);
    switch (method) {
      case 'Target.attachedToTarget':
        this.attach(String(params.sessionId), (params.targetInfo ?? {}) as { readonly targetId?: unknown });
        break;
      case 'Target.detachedFromTarget':
        this.detach(String(params.sessionId), 'the tab was closed');
        break;
      case 'Inspector.targetCrashed':
        if (sessionId === null) break;
        this.note('the page crashed, and its tab was closed');
        if (tab !== undefined) this.ask('Target.closeTarget', { targetId: tab.targetId }, null);
        this.detach(sessionId, 'the page crashed, and its tab was closed');
        break;
      case 'Page.javascriptDialogOpening':
        this.answerDialog(String(params.type), String(params.message), sessionId);
        break;
      case 'Page.frameStartedLoading':
        if (tab !== undefined && params.frameId === tab.targetId) tab.isLoading = true;
        break;
      case 'Page.frameStoppedLoading':
        if (tab === undefined || params.frameId !== tab.targetId) break;
        tab.isLoading = false;
        tab.loads++;
        break;
      default:
        return;
    }
    this.wake();
  }

  private attach(sessionId: string, { targetId }: { readonly targetId?: unknown }): void {
    if (this.tabs.length > 0) this.note('a new tab was opened');
    this.tabs.push({ targetId: String(targetId), sessionId, isLoading: false, loads: 0 });
    const { width, height } = this.screen;
    this.ask('Inspector.enable', {}, sessionId);
    this.ask('Page.enable', {}, sessionId);
    this.ask('Page.bringToFront', {}, sessionId);
    this.ask('Runtime.runIfWaitingForDebugger', {}, sessionId);
    this.ask('Emulation.setDeviceMetricsOverride', { width, height, deviceScaleFactor: 1, mobile: false }, sessionId);
  }

  private detach(sessionId: string, message: string): void {
    this.tabs = this.tabs.filter((tab) => tab.sessionId !== sessionId);
    if (this.tab !== null) this.ask('Page.bringToFront', {}, this.tab.sessionId);
    this.devtools.endSession(sessionId, message);
  }

  /** Answers a dialog at once, because it blocks its page: a prompt is dismissed and all others are accepted. */
  private answerDialog(type: string, message: string, sessionId: string | null): void {
    const accept = type !== 'prompt';
    this.note(`the page showed a dialog (${type}), which was ${accept ? 'accepted' : 'dismissed'}: ${message}`);
    this.ask('Page.handleJavaScriptDialog', { accept }, sessionId);
  }

  /** Sends a command without waiting for its result. If it fails, later commands fail too. */
  private ask(method: string, params: object, sessionId: string | null): void {
    this.devtools.send(method, params, sessionId, COMMAND_MS).catch(() => {});
  }

  private note(text: string): void {
    if (this.notes.length < MAX_NOTES) this.notes.push(text.slice(0, MAX_NOTE_CHARS));
  }

  private wake(): void {
    const { waiters } = this;
    this.waiters = [];
    for (const wake of waiters) wake();
  }
}
