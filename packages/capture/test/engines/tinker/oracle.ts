import { type ChildProcess, spawn } from 'node:child_process';
import { join } from 'node:path';
import { createInterface, type Interface } from 'node:readline';
import { repositoryRoot } from '../../../../../tools/repository.ts';

const PROGRAM = join(repositoryRoot(), 'verify', 'real-engines', 'tinker-oracle.py');

/** Maximum number of characters from the end of the program's error output that an error message quotes. */
const QUOTED_CHARS = 2000;

export type Sequence = { prompt: number[]; tokens: number[]; logprobs?: number[] };

/** Uses a Tinker server with Tinker's own SDK, in a Python process. */
export class TinkerOracle {
  private readonly child: ChildProcess;
  private readonly lines: AsyncIterator<string>;
  private readonly reader: Interface;
  private errors = '';

  /** `python` is the program of an environment that contains the SDK. */
  constructor(python: string, url: string, model: string) {
    const child = spawn(python, [PROGRAM, url, model], { stdio: ['pipe', 'pipe', 'pipe'] });
    child.stderr.on('data', (chunk: Buffer) => {
      this.errors = (this.errors + chunk.toString()).slice(-QUOTED_CHARS);
    });
    this.child = child;
    this.reader = createInterface({ input: child.stdout });
    this.lines = this.reader[Symbol.asyncIterator]();
  }

  sample(request: object): Promise<{ tokens: number[]; logprobs: number[] }> {
    return this.run({ do: 'sample', ...request });
  }

  /** Returns the log-probabilities of the tokens of each sequence, as the training side computes them. */
  forward(sequences: readonly Sequence[]): Promise<number[][]> {
    return this.run({ do: 'forward', sequences });
  }

  /** Trains one step on the sequences and returns the path of the saved weights. */
  step(sequences: readonly Sequence[]): Promise<string> {
    return this.run({ do: 'step', sequences });
  }

  close(): void {
    this.reader.close();
    this.child.kill();
  }

  private async run<T>(command: object): Promise<T> {
    this.child.stdin?.write(`${JSON.stringify(command)}\n`);
    const { value, done } = await this.lines.next();
    if (done === true) throw new Error(`the oracle ended: ${this.errors}`);
    return JSON.parse(value) as T;
  }
}
