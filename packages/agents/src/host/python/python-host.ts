import { type Clock, settleAll, systemClock } from '@floe-rl/core';
import type { PythonPlugin } from './python-plugin.ts';
import { PythonProcess } from './python-process.ts';

/** Keeps a Python process for a plug-in. A process that has ended is replaced. */
export class PythonHost {
  readonly name: string;
  readonly plugin: PythonPlugin;
  private current: Promise<PythonProcess> | null = null;

  constructor(name: string, plugin: PythonPlugin) {
    this.name = name;
    this.plugin = plugin;
  }

  /** Returns the process, or a new one when it takes no further episodes. Rejects with `setup_failed`. */
  async process(): Promise<PythonProcess> {
    for (;;) {
      this.current ??= PythonProcess.start({
        name: this.name,
        plugin: this.plugin,
        clock: systemClock,
        env: process.env,
      });
      const { current } = this;
      const found = await current.catch((error: unknown) => {
        this.forget(current);
        throw error;
      });
      if (!found.hasEnded) return found;
      this.forget(current);
    }
  }

  /** Ends the process. Another one starts when it is needed. */
  async close(): Promise<void> {
    const { current } = this;
    this.current = null;
    await (await current?.catch(() => null))?.close();
  }

  private forget(process: Promise<PythonProcess>): void {
    if (this.current === process) this.current = null;
  }
}

/**
 * Starts each plug-in once and ends it. Rejects with the `setup_failed` of one whose interpreter does not start or whose class cannot be
 * imported.
 */
export async function checkPythonPlugins(
  plugins: Readonly<Record<string, PythonPlugin>>,
  env: Readonly<Record<string, string | undefined>>,
  clock: Clock,
): Promise<void> {
  const starts = Object.entries(plugins).map(async ([name, plugin]) => {
    const started = await PythonProcess.start({ name, plugin, clock, env });
    await started.close();
  });
  await settleAll(starts);
}
