import type { FloeError } from '@floe-rl/core';

/** Why a tool could not do what was requested. An agent that acts through the tool can cause each of them. */
export const TOOL_FAILURES = [
  'not_found',
  'not_a_file',
  'not_a_directory',
  'outside',
  'too_large',
  'no_match',
  'several_matches',
  'busy',
  'unavailable',
  'failed',
] as const;

export type ToolFailure = (typeof TOOL_FAILURES)[number];

/** A tool could not do what was requested: an observation for the agent, and not a failure of the session. */
export class ToolError extends Error {
  readonly reason: ToolFailure;

  constructor(reason: ToolFailure, message: string) {
    super(message);
    this.name = 'ToolError';
    this.reason = reason;
  }
}

export type ShellOptions = {
  /** Directory in which the shell starts; default: the workdir. */
  readonly cwd?: string | undefined;
  readonly env?: Readonly<Record<string, string>> | undefined;
  /** Whether commands run in a terminal; default: false. In a terminal, stdout and stderr are one stream. Needs `script` of util-linux. */
  readonly pty?: boolean | undefined;
};

export type PythonOptions = {
  /** Directory in which Python starts; default: the workdir. */
  readonly cwd?: string | undefined;
  readonly env?: Readonly<Record<string, string>> | undefined;
  /** The interpreter: a path, or a name that is searched in `PATH`; default: `python3`, else `python`. */
  readonly program?: string | undefined;
};

export type RunOptions = {
  /** Time in milliseconds after which the code is interrupted, and killed if it does not end. */
  readonly timeoutMs: number;
  /** Maximum number of bytes that are kept of stdout and of stderr each; default and maximum: the spec's `max_output_mb`. */
  readonly maxOutputBytes?: number | undefined;
  /** Whether processes that the code leaves running are killed when it ends; default: false. */
  readonly killsRest?: boolean | undefined;
};

export const PROCESS_ENDS = ['exited', 'killed', 'broken'] as const;

/**
 * How the process of a shell or of Python ended. It exited by itself, it was killed because the code did not end in time, or it was killed
 * because it no longer followed the protocol. The last happens only when the code manipulates the process. The state is lost in all three
 * cases, and the next run starts a new process.
 */
export type ProcessEnd = (typeof PROCESS_ENDS)[number];

export type RunResult = {
  readonly stdout: string;
  readonly stderr: string;
  /** Number of bytes of stdout and stderr that were dropped because the output was too long. */
  readonly droppedBytes: number;
  /** Whether the time limit passed. */
  readonly timedOut: boolean;
  /** Whether a new process was started for this run, so that it found no state of earlier runs. */
  readonly isFirst: boolean;
  /** How the process that ran the code has ended; `null` when it continues to run and has kept its state. */
  readonly processEnd: ProcessEnd | null;
  readonly wallMs: number;
};

export type ShellResult = RunResult & {
  /** Exit code of the command; `null` when the shell was ended by a signal. */
  readonly exitCode: number | null;
  /** Name of the signal that ended the shell, such as `SIGKILL`; `null` otherwise. */
  readonly signal: string | null;
};

export type PythonResult = RunResult & {
  /** Text of the value of the cell's last expression; `null` when there is none. */
  readonly result: string | null;
  /** The traceback of the exception that ended the cell; `null` when there was none. */
  readonly error: string | null;
  /** Images that the cell displayed, such as plots, as PNG in base64. */
  readonly images: readonly string[];
  /** Number of characters and images that were left out of `result`, `error` and `images` because they were too long. */
  readonly omitted: number;
};

export type BrowserOptions = {
  /** The browser: a path, or a name that is searched in `PATH`; default: the first of the usual names of Chromium that exists. */
  readonly program?: string | undefined;
};

/** Where an action happens: a point in pixels from the top left corner of the visible part of the page, or the number of an element. */
export type BrowserPlace = { readonly x: number; readonly y: number } | { readonly element: number };

/** An action of a browser. */
export type BrowserAction =
  | { readonly action: 'screenshot' }
  /** Opens an address: `http`, `https`, `file`, `data` or `about`. */
  | { readonly action: 'goto'; readonly url: string }
  /** Clicks with the left button. */
  | { readonly action: 'click'; readonly place: BrowserPlace; readonly count: 1 | 2 }
  /**
   * Types into the element at a place, or into the focused element when `place` is `null`. In a list of options, chooses the option with this
   * name.
   */
  | { readonly action: 'type'; readonly text: string; readonly place: BrowserPlace | null }
  /** Presses a key, such as `Enter` or `ctrl+a`. */
  | { readonly action: 'key'; readonly keys: string }
  /** Scrolls by pixels, with the pointer at a place; `null` for the middle of the screen. */
  | { readonly action: 'scroll'; readonly place: BrowserPlace | null; readonly dx: number; readonly dy: number }
  | { readonly action: 'wait'; readonly ms: number };

/** One run of a browser, passed as JSON. All fields but the action are the same for all runs of a session. */
export type BrowserRequest = {
  readonly action: BrowserAction;
  /** Size of the visible part of pages in pixels. */
  readonly screen: { readonly width: number; readonly height: number };
  /** Whether pages come only from the sandbox itself, although its network may reach more. */
  readonly isLocal: boolean;
  /** Whether addresses of files of the sandbox can be opened. */
  readonly opensFiles: boolean;
  /** How the page is shown after the action. */
  readonly views: { readonly image: boolean; readonly text: boolean };
  /** Maximum time in milliseconds that the run waits for a page to load, and to respond. */
  readonly loadMs: number;
};

/** The page after an action. */
export type BrowserView = {
  /** Title, address, notes, and with the view `text` the page with numbered elements. */
  readonly text: string;
  /** The visible part of the page in base64; `null` without the view `image`, or when there is no page. */
  readonly image: { readonly type: 'image/png' | 'image/jpeg'; readonly data: string } | null;
  /** Whether the action failed; `text` says why. */
  readonly failed: boolean;
};

export type BrowserResult = RunResult & {
  /** `null` when the process ended during the run. */
  readonly view: BrowserView | null;
};

/** A process that keeps its state between runs. Runs one piece of code at a time, and rejects others with a {@link ToolError} (`busy`). */
export interface ToolProcess<Result> {
  /**
   * Runs code until it ends. Code that fails is a result, not an error. When `signal` aborts, the code is killed and the promise rejects
   * with the reason of `signal`. Otherwise rejects with a {@link ToolError}, or with `runtime_failed` when the sandbox has ended.
   */
  run(code: string, options: RunOptions, signal: AbortSignal): Promise<Result>;
  /** Sends SIGINT to the running code, as Ctrl-C in a terminal does. Does nothing when no code runs. */
  interrupt(): void;
  /** Writes to the terminal of the running command. Only for shells with `pty`; others ignore it. */
  type(text: string): void;
  /** Ends the process and everything that it started. The next run starts a new one. */
  restart(signal: AbortSignal): Promise<void>;
  /** Ends the process and everything that it started. May be called twice. */
  close(): Promise<void>;
}

export type ReadOptions = {
  /** First line to read; the lines of a file are numbered from 1; default: 1. */
  readonly firstLine?: number | undefined;
  /** Maximum number of lines to read; default: all. */
  readonly lineCount?: number | undefined;
};

export type FileText = {
  /** The lines, with their newlines. Bytes that are not valid UTF-8 are replaced. */
  readonly text: string;
  /** Number of the line after `text`; `null` when the file ends with `text`. Fewer lines than requested are read when they are long. */
  readonly nextLine: number | null;
  /** Whether `text` is only the start of a line that is too long to be read. */
  readonly isCut: boolean;
};

export type FileEdit = {
  readonly oldText: string;
  readonly newText: string;
  /** Whether all occurrences of `oldText` are replaced; default: false, so that it must occur exactly once. */
  readonly replacesAll?: boolean | undefined;
};

export type DirectoryEntry = {
  readonly name: string;
  readonly type: 'file' | 'directory' | 'link' | 'other';
  /** Size in bytes of a file; `null` for other entries. */
  readonly bytes: number | null;
};

export type DirectoryListing = {
  /** Entries in the order of their names. */
  readonly entries: readonly DirectoryEntry[];
  /** Whether the directory has more entries than are listed. */
  readonly isPartial: boolean;
};

/** How the box server of tools was lost. */
export type ToolsLoss = {
  /** The error of every operation on the tools: their promises reject with it. */
  readonly error: FloeError;
  /** Whether processes of the sandbox can have caused the loss; false when the container engine, the spawn helper or the host failed. */
  readonly byAgent: boolean;
  /** Whether code had been run or files had been accessed before. */
  readonly wasUsed: boolean;
};

/**
 * Tools in a sandbox: shells, Python processes and browsers that keep their state, and operations on files. All share one connection, so that an
 * action starts no process and opens no connection. Paths may be relative to the workdir. Operations reject with a {@link ToolError}, with
 * `runtime_failed` when the sandbox has ended, or with the reason of `signal`.
 */
export interface RuntimeTools {
  /** How the box server was lost, as soon as an operation has rejected because of it; `null` before. */
  readonly loss: ToolsLoss | null;
  /** Opens a shell, which is started by the first run: `bash` where the sandbox has it, and `sh` otherwise. */
  shell(options?: ShellOptions): ToolProcess<ShellResult>;
  /** Opens a Python process, which is started by the first run: IPython where it is installed, and a simple interpreter otherwise. */
  python(options?: PythonOptions): ToolProcess<PythonResult>;
  /** Opens a browser, which is started by the first run. Each run is a {@link BrowserRequest} as JSON. Needs Chromium in the sandbox. */
  browser(options?: BrowserOptions): ToolProcess<BrowserResult>;
  readFile(path: string, options: ReadOptions, signal: AbortSignal): Promise<FileText>;
  /** Creates a file or replaces its content, and creates missing parent directories. */
  writeFile(path: string, content: string | Buffer, signal: AbortSignal): Promise<void>;
  /** Replaces text of a file that occurs exactly once. Resolves with the number of replacements. */
  editFile(path: string, edit: FileEdit, signal: AbortSignal): Promise<number>;
  list(path: string, signal: AbortSignal): Promise<DirectoryListing>;
  /** Ends all shells, Python processes and browsers and everything that they started. May be called twice; never rejects. */
  close(): Promise<void>;
}
