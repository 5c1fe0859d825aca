import type { DirectoryEntry, ProcessEnd, ToolFailure } from '../api/tools.ts';

/*
 * Messages about tools between a gateway and the box server of a sandbox, as headers of frames. `id` is repeated in the reply. `process` is
 * a number that the gateway chose for a shell, a Python process or a browser. Paths are absolute.
 */

/** How a shell, a Python process or a browser is started. */
export type ToolProcessSpec = {
  readonly kind: 'shell' | 'terminal' | 'python' | 'browser';
  /** The program to start; `null` for the first of the usual programs that exists. Ignored for shells. */
  readonly program: string | null;
  readonly cwd: string;
  readonly env: Readonly<Record<string, string>>;
  /** Program and arguments to which the command line is appended, such as a script that sets limits. */
  readonly prefix: readonly string[];
};

export type ToolRunLimits = {
  readonly timeoutMs: number;
  readonly maxOutputBytes: number;
  readonly killsRest: boolean;
};

export type ToolRequest =
  /** Asks for a sign of life. */
  | { readonly type: 'tool_ping'; readonly id: number }
  /** Prepares a process. It is started by the first `tool_run`. */
  | { readonly type: 'tool_open'; readonly id: number; readonly process: number; readonly spec: ToolProcessSpec }
  /** Runs the body. Answered by `tool_ended`. */
  | { readonly type: 'tool_run'; readonly id: number; readonly process: number; readonly limits: ToolRunLimits }
  /** Sends SIGINT to the running code. Not answered. */
  | { readonly type: 'tool_interrupt'; readonly process: number }
  /** Ends the running code as if its time limit had passed. Not answered, because the `tool_run` of the code is answered. */
  | { readonly type: 'tool_cancel'; readonly process: number }
  /** Writes the body to the terminal. Not answered. */
  | { readonly type: 'tool_type'; readonly process: number }
  /** Ends the process; the next run starts a new one. */
  | { readonly type: 'tool_restart'; readonly id: number; readonly process: number }
  /** Ends the process and removes it. */
  | { readonly type: 'tool_close'; readonly id: number; readonly process: number }
  /** Reads lines of a file. Answered by `tool_text`. */
  | {
      readonly type: 'tool_read';
      readonly id: number;
      readonly path: string;
      readonly firstLine: number;
      readonly lineCount: number | null;
      readonly maxBytes: number;
    }
  /** Replaces the content of a file by the body. */
  | { readonly type: 'tool_write'; readonly id: number; readonly path: string }
  /**
   * The body is a text of `oldBytes` bytes and its replacement. Replaces the text by the replacement where it occurs in a file. Answered by
   * `tool_edited`.
   */
  | {
      readonly type: 'tool_edit';
      readonly id: number;
      readonly path: string;
      readonly oldBytes: number;
      readonly replacesAll: boolean;
    }
  /** Lists a directory. Answered by `tool_entries`. */
  | { readonly type: 'tool_list'; readonly id: number; readonly path: string };

export type ToolReply =
  | { readonly type: 'tool_done'; readonly id: number }
  | { readonly type: 'tool_failed'; readonly id: number; readonly reason: ToolFailure; readonly message: string }
  /** The end of a run. The body is stdout, then stderr, then for Python {@link PythonOutcome} and for a browser a `BrowserView`, as JSON. */
  | {
      readonly type: 'tool_ended';
      readonly id: number;
      readonly exitCode: number | null;
      readonly signal: string | null;
      readonly droppedBytes: number;
      readonly timedOut: boolean;
      readonly isFirst: boolean;
      readonly processEnd: ProcessEnd | null;
      readonly stdoutBytes: number;
      readonly stderrBytes: number;
    }
  /** The body contains the text. */
  | { readonly type: 'tool_text'; readonly id: number; readonly nextLine: number | null; readonly isCut: boolean }
  | { readonly type: 'tool_edited'; readonly id: number; readonly count: number }
  /** The body contains a list of {@link DirectoryEntry} as JSON. */
  | { readonly type: 'tool_entries'; readonly id: number; readonly isPartial: boolean };

/** The fields of a run's result that only Python has. */
export type PythonOutcome = {
  readonly result: string | null;
  readonly error: string | null;
  readonly images: readonly string[];
  readonly omitted: number;
};

/** Maximum number of entries of a directory that are listed. */
export const MAX_ENTRIES = 2_000;
/** Maximum length in bytes of the JSON of a {@link PythonOutcome} or a `BrowserView`. */
export const MAX_OUTCOME_BYTES = 8 * 1024 * 1024;

export type { DirectoryEntry };
