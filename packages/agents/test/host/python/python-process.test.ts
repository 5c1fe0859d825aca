import { join } from 'node:path';
import { FloeError, systemClock, VirtualClock } from '@floe-rl/core';
import { describe, expect, it, onTestFinished } from 'vitest';
import { checkPythonPlugins, PythonHost } from '../../../src/host/python/python-host.ts';
import { type PythonPlugin, pythonPluginSchema } from '../../../src/host/python/python-plugin.ts';
import { PythonProcess } from '../../../src/host/python/python-process.ts';

const path = join(import.meta.dirname, '..', 'plugins', 'python');
/** Begins an episode whose code sends no request to its node. */
const begin = (process: PythonProcess) => process.begin(asksNothing, new AbortController().signal);
const asksNothing = () => Promise.reject(new Error('it asks nothing'));

const pluginOf = (target: string, fields: Partial<PythonPlugin> = {}): PythonPlugin =>
  pythonPluginSchema.parse({ kind: 'environment', target, path, ...fields });

async function started(plugin: PythonPlugin, clock = systemClock): Promise<PythonProcess> {
  const process = await PythonProcess.start({ name: 'it', plugin, clock, env: globalThis.process.env });
  onTestFinished(() => process.close());
  return process;
}

const reset = { seed: 7, options: {} };
const said = (content: string) => ({ message: { role: 'assistant', content } });

describe('the start of a Python plug-in', () => {
  it.each([
    ['its module does not exist', { target: 'absent:World' }, "ModuleNotFoundError: No module named 'absent'"],
    ['its module throws', { target: 'does_not_import:World' }, 'RuntimeError: this module does not import'],
    ['its class is missing', { target: 'worlds:World' }, 'ImportError: module worlds has no World'],
    ['its class has no step', { target: 'sums_handler:Sums' }, 'ImportError: sums_handler:Sums has no method reset'],
    ['it cannot be called', { target: 'worlds:NOT_CALLABLE' }, 'worlds:NOT_CALLABLE cannot be called'],
    ['a runner lacks run_job', { kind: 'runner', target: 'roll_runner.Unfinished' }, 'lacks run_job'],
    ['a handler has no data sources', { kind: 'handler', target: 'sums_handler:NoSources' }, 'has no data_sources'],
    ['its module ends the process', { target: 'ends_process:World' }, 'its process ended (5)'],
    ['the interpreter does not exist', { python: '/no/python' }, 'the interpreter /no/python cannot be started'],
    ['the interpreter is another program', { python: '/bin/false' }, 'its process ended (1)'],
  ] as const)('fails with an error that names it when %s', async (_, fields, message) => {
    const plugin = pluginOf('worlds:Countdown', fields);
    await expect(checkPythonPlugins({ it: plugin }, process.env, systemClock)).rejects.toMatchObject({
      code: 'setup_failed',
      message: expect.stringMatching(new RegExp(`^plugins\\.python\\.it: .*${message.replace(/[()[\].]/g, '\\$&')}`)),
    });
  });

  it('finds its own plug-in among several, and ends all', async () => {
    const good = pluginOf('worlds:Countdown');
    await checkPythonPlugins({ one: good, two: good }, process.env, systemClock);
    const broken = pluginOf('worlds:World');
    await expect(checkPythonPlugins({ one: good, broken }, process.env, systemClock)).rejects.toThrow(
      'plugins.python.broken',
    );
  });
});

describe('a Python process', () => {
  it('gives each episode its own state of the global random generator, also when episodes take turns', async () => {
    const process = await started(pluginOf('worlds:Drawing'));
    const draw = async (count: number, between: () => Promise<unknown>): Promise<unknown[]> => {
      const episode = begin(process);
      const seen = [await episode.call('reset', reset)];
      for (let i = 0; i < count; i++) {
        await between();
        seen.push(await episode.call('step', said('')));
      }
      episode.end();
      return seen;
    };
    const alone = await draw(3, async () => {});
    const other = begin(process);
    await other.call('reset', { ...reset, seed: 8 });
    expect(await draw(3, () => other.call('step', said('')))).toEqual(alone);
    expect(new Set(alone.map((one) => JSON.stringify(one))).size).toBe(4);
  });

  it('that is killed in a step ends that episode as the culprit and others as not to blame; the next gets another process', async () => {
    const host = new PythonHost('it', pluginOf('worlds:Misbehaving', { options: { deed: 'kill' } }));
    const process = await host.process();
    const culprit = begin(process);
    const neighbour = begin(process);
    await Promise.all([culprit.call('reset', reset), neighbour.call('reset', reset)]);
    const killed = expect(culprit.call('step', said('1'))).rejects.toMatchObject({
      code: 'plugin_failed',
      message: 'code of this episode, in step: plugins.python.it: its process ended (SIGKILL)',
    });
    // The neighbour's step waits for its turn when the process ends.
    const waiting = expect(neighbour.call('step', said('1'))).rejects.toMatchObject({ code: 'runtime_failed' });
    await Promise.all([killed, waiting]);
    await expect(neighbour.call('step', said('1'))).rejects.toMatchObject({ code: 'runtime_failed' });
    neighbour.end();

    const next = await host.process();
    onTestFinished(() => next.close());
    expect(next).not.toBe(process);
    expect(await begin(next).call('reset', reset)).toMatchObject({ content: 'say 1' });
  });

  it('blames nobody when it ends while code of several episodes runs', async () => {
    const plugin = pluginOf('worlds:Misbehaving', { options: { deed: 'block' }, threads: 2 });
    const process = await started(plugin);
    const episodes = [begin(process), begin(process)];
    await Promise.all(episodes.map((episode) => episode.call('reset', reset)));
    const steps = episodes.map((episode) => episode.call('step', said('1')));
    globalThis.process.kill(process.pid, 'SIGKILL');
    for (const step of steps) await expect(step).rejects.toMatchObject({ code: 'runtime_failed' });
  });

  it('runs as many episodes at the same time as it has threads', async () => {
    const process = await started(pluginOf('worlds:Meeting', { threads: 2 }));
    const episodes = [begin(process), begin(process)];
    // Each episode waits in its reset until the other episode has reached its reset, too.
    const observed = await Promise.all(episodes.map((episode) => episode.call('reset', reset)));
    expect(observed).toMatchObject([{ content: 'met' }, { content: 'met' }]);
  });

  it('is ended when a step takes too long, and the step is to blame', async () => {
    const clock = new VirtualClock();
    const process = await started(pluginOf('worlds:Misbehaving', { options: { deed: 'block' } }), clock);
    const episode = begin(process);
    await episode.call('reset', reset, 60_000);
    const step = expect(episode.call('step', said('1'), 60_000)).rejects.toMatchObject({
      code: 'plugin_failed',
      message: expect.stringContaining('step did not return within 60 s'),
    });
    // The step gets its permit in a later turn of the event loop, and only then has a deadline.
    await new Promise(setImmediate);
    await clock.advance(60_000);
    await step;
    expect(process.hasEnded).toBe(true);
  });

  it('fails with the error of its node when code does not handle it', async () => {
    const process = await started(pluginOf('sleeping_runner:Sleeping', { kind: 'runner' }));
    const error = new FloeError('engine_error', 'the engine failed');
    const episode = process.begin(() => Promise.reject(error), new AbortController().signal);
    await expect(episode.call('run_job', { order: ORDER, config: {} })).rejects.toBe(error);
  });

  it('blames the only episode that does not wait for its node when the process ends', async () => {
    const process = await started(pluginOf('sleeping_runner:Sleeping', { kind: 'runner' }));
    const never = new Promise<never>(() => {});
    const jobs = [never, Promise.resolve()].map(async (answer) => {
      let asked = (): void => {};
      const isAsked = new Promise<void>((resolve) => {
        asked = resolve;
      });
      const serve = (): Promise<void> => {
        asked();
        return answer;
      };
      const job = process.begin(serve, new AbortController().signal).call('run_job', { order: ORDER, config: {} });
      job.catch(() => {});
      await isAsked;
      return { job };
    });
    const [waiting, running] = await Promise.all(jobs);
    globalThis.process.kill(process.pid, 'SIGKILL');
    await expect(waiting?.job).rejects.toMatchObject({ code: 'runtime_failed' });
    await expect(running?.job).rejects.toMatchObject({ code: 'plugin_failed' });
  });

  it('takes no further episodes when code of one that has ended keeps its thread, and ends after the others', async () => {
    const clock = new VirtualClock();
    const plugin = pluginOf('sleeping_runner:Sleeping', { kind: 'runner' });
    const process = await started(plugin, clock);
    const abort = new AbortController();
    const asleep = new Promise<void>((resolve) => {
      const stuck = process.begin(async () => resolve(), abort.signal);
      const job = expect(stuck.call('run_job', { order: ORDER, config: {} })).rejects.toThrow('time is up');
      void job.finally(() => stuck.end());
    });
    await asleep;
    abort.abort(new Error('time is up'));
    await new Promise(setImmediate);
    const other = begin(process);
    await clock.advance(30_000);
    expect(process.hasEnded).toBe(true);
    expect(await other.call('run_job', { order: ORDER, config: { quick: true } })).toMatchObject({
      status: 'Finished',
    });
    other.end();
    await process.hasExited;
  });
});

const ORDER = {
  seed: 1,
  ...{ instruction: '', system_prompt: null, metadata: {}, services: {}, max_turns: null, workdir: null },
  ...{ has_environment: false, base_url: 'http://127.0.0.1:1', api_key: 'key' },
};
