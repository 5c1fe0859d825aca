// Starts the fuzzer's child processes and exchanges messages with them.
import { type ChildProcess, fork } from 'node:child_process';
import type { Server } from 'node:http';
import { entryPath } from '@floe-rl/core';
import { z } from 'zod';

const requestSchema = z.object({ id: z.number(), name: z.string(), argument: z.string().nullable() });
const replySchema = z.object({ id: z.number(), value: z.unknown() });
const portSchema = z.object({ port: z.number() });

/** Called in a process that the fuzzer forked: reports that it listens on `port`, and exits when the fuzzer exits. */
export function reportPort(port: number): void {
  process.on('disconnect', () => process.exit());
  process.send?.({ port });
}

/** Replies to the fuzzer's requests in a child process. A request that fails ends the process. */
export function answerRequests(answers: Readonly<Record<string, (argument: string | null) => Promise<object>>>): void {
  process.on('message', async (message) => {
    const { id, name, argument } = requestSchema.parse(message);
    const answer = answers[name];
    if (answer === undefined) throw new Error(`there is no request ${name}`);
    process.send?.({ id, value: await answer(argument) });
  });
}

/** Returns the port of a listening server. */
export function portOf(server: Server): number {
  const address = server.address();
  if (address === null || typeof address === 'string') throw new Error('the server does not listen on a port');
  return address.port;
}

/** A child process of the fuzzer. When it ends unexpectedly, the fuzzer exits as well. */
export class FuzzProcess {
  readonly port: number;
  private readonly child: ChildProcess;
  private readonly onExit: (code: number | null) => void;
  private readonly waiting = new Map<number, (value: unknown) => void>();
  private sent = 0;

  /** Starts a compiled module of this folder as a child process. Resolves when it listens. */
  static async start(file: string, ...args: readonly string[]): Promise<FuzzProcess> {
    const child = fork(entryPath(import.meta.url, file), args, {
      stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
      execArgv: ['--expose-gc'],
    });
    const onExit = (code: number | null): void => {
      console.error(`the process ${file} ended with ${code}`);
      process.exit(1);
    };
    child.once('exit', onExit);
    const message = await new Promise<unknown>((resolve) => child.once('message', resolve));
    return new FuzzProcess(child, onExit, portSchema.parse(message).port);
  }

  private constructor(child: ChildProcess, onExit: (code: number | null) => void, port: number) {
    this.child = child;
    this.onExit = onExit;
    this.port = port;
    child.on('message', (message) => {
      const { id, value } = replySchema.parse(message);
      this.waiting.get(id)?.(value);
      this.waiting.delete(id);
    });
  }

  /** Sends a request to the child. Resolves to the child's reply. */
  request(name: string, argument: string | null = null): Promise<unknown> {
    return new Promise((resolve) => {
      const id = ++this.sent;
      this.waiting.set(id, resolve);
      this.child.send({ id, name, argument });
    });
  }

  stop(): void {
    this.child.off('exit', this.onExit);
    this.child.disconnect();
  }
}
