import { type ChildProcess, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import type { Duplex, Writable } from 'node:stream';
import { lastOutput, scheduleAfterInput, systemClock } from '@floe-rl/core';
import { type ProcessEnd, ToolError } from '../api/tools.ts';
import { InterpreterMembers } from './interpreter-members.ts';
import { MarkedOutput, markerOf } from './marked-output.ts';
import type { ToolRunLimits } from './tool-messages.ts';

/**
 * Time in milliseconds that code has to end after an interrupt before its processes are killed. After the same time again, its interpreter is
 * killed.
 */
const END_MS = 1_000;
/**
 * Interval in milliseconds at which the end of a run is requested again after an interrupt. An interrupt can make a shell discard its input,
 * and with it an earlier request.
 */
const REPEAT_MS = 250;
/** Maximum time in milliseconds for the start of an interpreter. */
const START_MS = 60_000;
/** Time in milliseconds to wait for the output of an interpreter that has ended: another process may hold it open. */
const OUTPUT_GRACE_MS = 250;
/** Maximum time in milliseconds between the end of a run on the control stream and the markers on the outputs. */
const MARKER_MS = 5_000;
/** Maximum length in bytes of a line of the control stream. */
const MAX_LINE_BYTES = 256;
const START_OUTPUT_BYTES = 4_096;
const EMPTY = Buffer.alloc(0);

/** How floe starts one kind of interpreter and runs code in it. */
export type Dialect = {
  readonly argv: readonly string[];
  readonly cwd: string;
  readonly env: Readonly<Record<string, string>>;
  /** Environment entry `NAME=value` that marks the processes of the interpreter. */
  readonly marker: string;
  /** Whether commands run in a terminal, whose only output is stdout. */
  readonly isTerminal: boolean;
  /** Whether the interpreter reads its input from the control stream; otherwise from stdin. */
  readonly readsControl: boolean;
  /** Maximum length in bytes of the data that follows a line `E` of the control stream. */
  readonly maxDetailBytes: number;
  /** Input that is sent before the first run. */
  readonly setUp: Buffer;
  /**
   * Returns the input that starts a run. The interpreter writes `A <nonce>` to the control stream when the code starts. When the code has
   * ended, it writes the marker to its outputs and `E <nonce> <exit code> <length>` to the control stream, followed by data of that length.
   */
  begin(nonce: string, code: Buffer, lastExitCode: number): Buffer;
  /** Input that makes the interpreter report the end of a run; `null` when it does so by itself. */
  finish(nonce: string): Buffer | null;
  /**
   * Whether the interpreter reads ahead, and can lose input that it has read. The input of {@link finish} is then sent only after the code has
   * started.
   */
  readonly readsAhead: boolean;
};

/** The end of a run, with the data that followed on the control stream. */
export type Ending = {
  readonly exitCode: number | null;
  readonly signal: string | null;
  readonly stdout: Buffer;
  readonly stderr: Buffer;
  readonly droppedBytes: number;
  readonly timedOut: boolean;
  readonly processEnd: ProcessEnd | null;
  readonly detail: Buffer;
};

type Run = {
  readonly nonce: string;
  readonly killsRest: boolean;
  readonly resolve: (ending: Ending) => void;
  hasStarted: boolean;
  /** Whether an interrupt was sent or waits for the start of the code. */
  isInterrupted: boolean;
  timedOut: boolean;
  /** Number of outputs whose marker has not arrived. */
  missingMarkers: number;
  end: { readonly exitCode: number; readonly detail: Buffer } | null;
  cancelTimer: () => void;
};

/** A process in the sandbox that runs one piece of code after another and keeps its state: a shell, or Python. */
export class Interpreter {
  private readonly dialect: Dialect;
  private readonly child: ChildProcess;
  private readonly members: InterpreterMembers;
  private readonly outputs: readonly MarkedOutput[];
  private readonly control: Duplex;
  private received: Buffer = EMPTY;
  /** The end of a run whose data has not arrived completely; `null` otherwise. */
  private awaited: { readonly exitCode: number; readonly bytes: number } | null = null;
  private run: Run | null = null;
  /** Nonce of the last run when its end may be reported more than once, because it was requested repeatedly; `null` otherwise. */
  private repeatedNonce: string | null = null;
  private lastExitCode = 0;
  private processEnd: ProcessEnd = 'exited';
  private exit: { readonly exitCode: number | null; readonly signal: string | null } | null = null;
  /** Resolves when the process and all processes that it started have ended. */
  readonly ended: Promise<void>;

  private constructor(dialect: Dialect, child: ChildProcess, pid: number) {
    this.dialect = dialect;
    this.child = child;
    this.members = new InterpreterMembers(pid, dialect.marker, dialect.isTerminal);
    const { stdout, stderr, stdio } = child;
    this.control = stdio[3] as Duplex;
    const streams = dialect.isTerminal ? [stdout] : [stdout, stderr];
    this.outputs = streams.flatMap((stream) =>
      stream === null ? [] : [new MarkedOutput(stream, () => this.marked())],
    );
    if (dialect.isTerminal) stderr?.resume();
    child.stdin?.on('error', () => {});
    this.control.on('error', () => {});
    this.control.on('data', (chunk: Buffer) => this.receive(chunk));
    // A process that exits also ends its control stream, shortly before its exit is reported.
    this.control.on('end', () => scheduleAfterInput(systemClock, END_MS, () => this.break()));
    const closed = new Promise<void>((resolve) => child.once('close', () => resolve()));
    this.ended = new Promise((resolve) => {
      child.once('exit', (exitCode, signal) => {
        this.exit = { exitCode, signal };
        void this.finishExit(closed).then(resolve);
      });
    });
  }

  /** Starts the process. Rejects with a {@link ToolError} when it cannot be started. */
  static async spawn(dialect: Dialect): Promise<Interpreter> {
    const [program = '', ...args] = dialect.argv;
    const child = spawn(program, args, {
      detached: true,
      cwd: dialect.cwd,
      env: { ...dialect.env },
      stdio: ['pipe', 'pipe', 'pipe', 'pipe'],
    });
    if (child.pid === undefined) {
      const cause = await new Promise<Error>((resolve) => child.once('error', resolve));
      throw new ToolError('failed', `cannot start ${program} in ${dialect.cwd}: ${cause.message}`);
    }
    child.on('error', () => {});
    return new Interpreter(dialect, child, child.pid);
  }

  /**
   * Prepares the process for runs. Rejects with a {@link ToolError} when the process ends instead. All processes that it started have then
   * ended too.
   */
  async setUp(): Promise<void> {
    this.write(this.dialect.setUp);
    const limits = { timeoutMs: START_MS, maxOutputBytes: START_OUTPUT_BYTES, killsRest: false };
    const { processEnd, stdout, stderr } = await this.perform(EMPTY, limits);
    if (processEnd === null) return;
    await this.ended;
    const output = Buffer.concat([stdout, stderr]).toString().trim();
    throw new ToolError('failed', `${this.dialect.argv.join(' ').slice(-200)} ended while it was starting: ${output}`);
  }

  get hasEnded(): boolean {
    return this.exit !== null;
  }

  /** Runs code. When the returned process end is not `null`, the interpreter has ended. */
  async execute(code: Buffer, limits: ToolRunLimits): Promise<Ending> {
    if (this.repeatedNonce !== null) await this.synchronize();
    const before = limits.killsRest ? this.members.list() : null;
    const ending = await this.perform(code, limits);
    if (before !== null && ending.processEnd === null) await this.members.kill(before);
    return ending;
  }

  /** Sends SIGINT to the running code. If the code has not started yet, sends it at the start. */
  interrupt(): void {
    const { run } = this;
    if (run === null || run.end !== null) return;
    run.isInterrupted = true;
    if (!run.hasStarted) return;
    if (this.dialect.isTerminal) this.child.stdin?.write('\x03');
    else this.members.signalGroup('SIGINT');
    systemClock.schedule(REPEAT_MS, () => this.repeatFinish(run));
  }

  /** Ends the running code as if its time limit had passed. */
  cancel(): void {
    if (this.run !== null) this.endRun(this.run);
  }

  type(text: Buffer): void {
    if (this.dialect.isTerminal) this.child.stdin?.write(text);
  }

  /** Ends the process and everything that it started. */
  async close(): Promise<void> {
    this.kill('killed');
    await this.ended;
  }

  private perform(code: Buffer, limits: ToolRunLimits): Promise<Ending> {
    const nonce = randomBytes(16).toString('hex');
    return new Promise((resolve) => {
      const run: Run = {
        nonce,
        killsRest: limits.killsRest,
        resolve,
        hasStarted: false,
        isInterrupted: false,
        timedOut: false,
        missingMarkers: this.outputs.length,
        end: null,
        cancelTimer: () => {},
      };
      this.run = run;
      for (const output of this.outputs) output.expect(markerOf(nonce), limits.maxOutputBytes);
      if (this.exit !== null) {
        this.settle(run);
        return;
      }
      run.cancelTimer = systemClock.schedule(limits.timeoutMs, () => {
        run.timedOut = true;
        this.endRun(run);
      });
      const begin = this.dialect.begin(nonce, code, this.lastExitCode);
      const finish = this.dialect.readsAhead ? null : this.dialect.finish(nonce);
      this.write(finish === null ? begin : Buffer.concat([begin, finish]));
    });
  }

  /** Runs empty code. Repeated reports of the previous run's end arrive before the end of this run and are dropped. */
  private async synchronize(): Promise<void> {
    const exitCode = this.lastExitCode;
    await this.perform(EMPTY, { timeoutMs: END_MS, maxOutputBytes: START_OUTPUT_BYTES, killsRest: false });
    this.repeatedNonce = null;
    this.lastExitCode = exitCode;
  }

  /** Interrupts a run. If the run does not end in time, kills its processes, and then the interpreter. */
  private endRun(run: Run): void {
    run.cancelTimer();
    this.interrupt();
    run.cancelTimer = systemClock.schedule(END_MS, () => {
      void this.members.kill([]);
      run.cancelTimer = systemClock.schedule(END_MS, () => this.kill('killed'));
    });
  }

  /** Requests the end of an interrupted run at intervals until the end is reported. */
  private repeatFinish(run: Run): void {
    const finish = this.dialect.finish(run.nonce);
    if (this.run !== run || finish === null || this.exit !== null) return;
    this.repeatedNonce = run.nonce;
    this.write(Buffer.concat([Buffer.from('\n'), finish]));
    systemClock.schedule(REPEAT_MS, () => this.repeatFinish(run));
  }

  private write(input: Buffer): void {
    const stream: Writable | null = this.dialect.readsControl ? this.control : this.child.stdin;
    stream?.write(input);
  }

  private receive(chunk: Buffer): void {
    this.received = this.received.length === 0 ? chunk : Buffer.concat([this.received, chunk]);
    while (this.exit === null) {
      if (this.awaited !== null) {
        if (this.received.length < this.awaited.bytes) return;
        this.reportEnd(this.awaited.exitCode, this.received.subarray(0, this.awaited.bytes));
        this.received = this.received.subarray(this.awaited.bytes);
        this.awaited = null;
        continue;
      }
      const end = this.received.indexOf('\n');
      if (end < 0) {
        if (this.received.length > MAX_LINE_BYTES) this.break();
        return;
      }
      const line = this.received.toString('latin1', 0, end);
      this.received = this.received.subarray(end + 1);
      this.readLine(line);
    }
  }

  /**
   * Reads a line of the control stream. Ends the interpreter after a line that the protocol does not allow, because only the running code can
   * have written it.
   */
  private readLine(line: string): void {
    const [, kind, nonce, exitCode, bytes] = /^([AE]) ([0-9a-f]{32})(?: (\d{1,3}) (\d{1,9}))?$/.exec(line) ?? [];
    const { run } = this;
    if (kind !== undefined && nonce === this.repeatedNonce && nonce !== run?.nonce) return;
    if (run === null || nonce !== run.nonce) {
      this.break();
    } else if (kind === 'A' && !run.hasStarted) {
      run.hasStarted = true;
      const finish = this.dialect.readsAhead ? this.dialect.finish(nonce) : null;
      if (finish !== null) this.write(finish);
      if (run.isInterrupted) this.interrupt();
    } else if (kind === 'E' && run.hasStarted && run.end === null && Number(bytes) <= this.dialect.maxDetailBytes) {
      this.awaited = { exitCode: Number(exitCode), bytes: Number(bytes) };
    } else if (this.repeatedNonce !== nonce) {
      this.break();
    }
  }

  private reportEnd(exitCode: number, detail: Buffer): void {
    const { run } = this;
    if (run === null) return;
    run.end = { exitCode, detail };
    this.lastExitCode = exitCode;
    run.cancelTimer();
    // If a marker does not arrive in time, the code has closed or replaced the outputs of the interpreter.
    run.cancelTimer = scheduleAfterInput(systemClock, MARKER_MS, () => this.break());
    this.settleWhenComplete(run);
  }

  private marked(): void {
    if (this.run === null) return;
    this.run.missingMarkers -= 1;
    this.settleWhenComplete(this.run);
  }

  private settleWhenComplete(run: Run): void {
    if (run.end !== null && run.missingMarkers === 0) this.settle(run);
  }

  private settle(run: Run): void {
    run.cancelTimer();
    this.run = null;
    const [stdout, stderr] = this.outputs.map((output) => output.take());
    const ended = this.exit;
    run.resolve({
      exitCode: ended === null ? (run.end?.exitCode ?? null) : ended.exitCode,
      signal: ended?.signal ?? null,
      stdout: stdout?.bytes ?? EMPTY,
      stderr: stderr?.bytes ?? EMPTY,
      droppedBytes: (stdout?.droppedBytes ?? 0) + (stderr?.droppedBytes ?? 0),
      timedOut: run.timedOut,
      processEnd: ended === null ? null : this.processEnd,
      detail: run.end?.detail ?? EMPTY,
    });
  }

  /** Ends an interpreter that has reported something unexpected or lost its control stream. */
  private break(): void {
    if (this.exit === null) this.kill('broken');
  }

  private kill(end: ProcessEnd): void {
    if (this.exit !== null) return;
    if (this.processEnd === 'exited') this.processEnd = end;
    this.members.signalGroup('SIGKILL');
    this.child.kill('SIGKILL');
  }

  private async finishExit(closed: Promise<void>): Promise<void> {
    await this.members.killAll();
    const { stdout, stderr } = this.child;
    await lastOutput({ streams: [stdout, stderr], closed }, OUTPUT_GRACE_MS, systemClock);
    for (const stream of this.child.stdio) stream?.destroy();
    if (this.run !== null) this.settle(this.run);
  }
}
