import { type ChildProcess, spawn } from 'node:child_process';
import { FloeError, KIB, LineReader, PendingRequests, raceAbort, Semaphore } from '@floe-rl/core';
import { z } from 'zod';
import { WORKER_SOURCE } from './worker-source.ts';

/** Limit of the processor time of one comparison in seconds. Legitimate comparisons take milliseconds. */
const COMPARISON_SECONDS = 5;
/** Limit of the address space of one comparison in MiB. Python with sympy alone takes about 150 MiB. */
const COMPARISON_MB = 1024;
/** Number of comparisons that run concurrently. A hostile answer occupies one of them while it computes. */
const CONCURRENCY = 4;
/** Maximum number of characters of the worker's error output, taken from its end, that an error message quotes. */
const STDERR_CHARS = 500;
/** Maximum length in bytes of a reply of the worker, which has read hostile answers. */
const REPLY_BYTES = 64 * KIB;

const verdictSchema = z.enum(['equal', 'different', 'unreadable', 'timeout', 'failed', 'bad_expected']);
/**
 * Result of a comparison. `unreadable`: the answer is not an expression. `timeout` and `failed`: the answer exceeded the limits on processor
 * time or memory. `bad_expected`: an expected answer is not an expression, or itself exceeded the limits.
 */
export type MathVerdict = z.infer<typeof verdictSchema>;

const replySchema = z.union([z.object({ version: z.string() }), z.object({ id: z.int(), verdict: verdictSchema })]);

export type MathQuestion = {
  /** Expressions in LaTeX. The answer must equal at least one of them. */
  readonly expected: readonly string[];
  readonly answer: string;
  /** Whether `answer` is a text that contains an expression, and not the expression itself. */
  readonly extract: boolean;
};

/** Compares mathematical answers, which may be hostile. */
export interface MathChecker {
  /**
   * Resolves with the verdict on an answer. Rejects with `evaluator_failed` when math-verify is not installed or its process ends, or with the
   * reason of `signal`.
   */
  check(question: MathQuestion, signal: AbortSignal): Promise<MathVerdict>;
  /** Ends the worker process. May be called twice. */
  close(): Promise<void>;
}

/**
 * Creates a checker that compares answers with the Python package math-verify in one worker process. The process starts with the first answer.
 * `python` resolves with the path of a Python interpreter that has the package; `null` when it is not installed.
 */
export function mathChecker(python: () => Promise<string | null>): MathChecker {
  const slots = new Semaphore(CONCURRENCY);
  let worker: Worker | null = null;
  let isClosed = false;
  const running = async (): Promise<Worker> => {
    const program = await python();
    if (program === null) {
      throw new FloeError(
        'evaluator_failed',
        'answer: math-verify is not installed on this node; run `floe evaluator install math_verify`, or set node.math_python',
      );
    }
    if (isClosed) throw new FloeError('evaluator_failed', 'answer: the node is shutting down');
    if (!worker?.isAlive) worker = new Worker(program);
    return worker;
  };
  return {
    async check(question, signal) {
      const release = await slots.acquire(signal);
      try {
        return await raceAbort((await running()).ask(question), signal);
      } finally {
        release();
      }
    },
    async close() {
      isClosed = true;
      await worker?.close();
    },
  };
}

class Worker {
  isAlive = true;
  private readonly child: ChildProcess;
  private readonly questions = new PendingRequests<MathVerdict>(0);
  private readonly ended: Promise<void>;
  private errorOutput = '';

  constructor(python: string) {
    const limits = [String(COMPARISON_SECONDS), String(COMPARISON_MB)];
    this.child = spawn(python, ['-I', '-c', WORKER_SOURCE, ...limits], {
      env: { PATH: process.env.PATH, LANG: 'C.UTF-8' },
      cwd: '/',
      stdio: ['pipe', 'pipe', 'pipe'],
      // As the leader of a process group, the worker can be killed together with the comparisons that it runs.
      detached: true,
    });
    this.child.stderr?.on('data', (chunk: Buffer) => {
      this.errorOutput = (this.errorOutput + chunk.toString()).slice(-STDERR_CHARS);
    });
    this.child.stdin?.on('error', () => {});
    const reader = new LineReader(REPLY_BYTES, (line) => this.receive(line.toString()));
    this.child.stdout?.on('data', (chunk: Buffer) => {
      if (this.isAlive && !reader.push(chunk)) this.fail(`it printed a line of more than ${REPLY_BYTES} bytes`);
    });
    this.ended = new Promise((resolve) => {
      const end = (reason: string): void => {
        this.fail(reason);
        resolve();
      };
      this.child.once('error', (error) => end(error.message));
      this.child.once('close', (code, signal) => end(this.errorOutput.trim() || `it ended with ${signal ?? code}`));
    });
  }

  ask(question: MathQuestion): Promise<MathVerdict> {
    const { id, reply } = this.questions.add(undefined);
    this.child.stdin?.write(`${JSON.stringify({ id, ...question })}\n`);
    return reply;
  }

  async close(): Promise<void> {
    this.kill();
    await this.ended;
  }

  private kill(): void {
    try {
      if (this.child.pid !== undefined) process.kill(-this.child.pid, 'SIGKILL');
    } catch {
      // `kill` fails when all processes of the worker's group have already ended.
    }
  }

  private receive(line: string): void {
    const reply = parseReply(line);
    if (reply === null) this.fail(`it printed ${line.slice(0, STDERR_CHARS)}`);
    else if ('id' in reply) this.questions.resolve(reply.id, reply.verdict);
  }

  private fail(reason: string): void {
    this.isAlive = false;
    this.kill();
    const error = new FloeError('evaluator_failed', `answer: the process of math-verify failed: ${reason}`);
    this.questions.end(() => error);
  }
}

function parseReply(line: string): z.infer<typeof replySchema> | null {
  try {
    return replySchema.parse(JSON.parse(line));
  } catch {
    return null;
  }
}
