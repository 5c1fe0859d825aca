import { runtimeSpecSchema } from '@floe-rl/core/schema';
import { collect } from '@floe-rl/sandbox';
import { afterAll, beforeAll, beforeEach, expect, it } from 'vitest';
import { describeIf } from '../../../../../../test/skip.ts';
import { EGRESS_PORT } from '../../../../../sandbox/src/workspace/environment.ts';
import {
  bubblewrapMissing,
  never,
  processesMentioning,
  processesThatMount,
  uniqueSeconds,
  Workbench,
} from '../../../../../sandbox/test/backends/workbench.ts';
import { ask, closed, output, pool, serve, servicesWith } from '../../../gateway/reuse-bench.ts';

describeIf(await bubblewrapMissing(), 'a bubblewrap sandbox for several sessions', () => {
  let bench: Workbench;
  let sandboxes: ReturnType<typeof pool>;
  beforeAll(async () => {
    bench = await Workbench.open();
  });
  beforeEach(() => {
    sandboxes = pool(bench, 'bubblewrap');
  });
  afterAll(() => bench.close());

  it('has the files as prepared for each session, and nothing that an agent left', async () => {
    const { begin, end, reused, events } = sandboxes;
    const spec = runtimeSpecSchema.parse({
      storage_mb: 32,
      prepare: [{ type: 'exec', command: 'head -c 8 /dev/urandom | od -An -tx1 >id; mkdir bin; echo ok >bin/answer' }],
      reuse: { health_command: 'test "$(cat bin/answer)" = ok' },
    });
    const first = await begin(spec);
    const id = await output(first.runtime, 'cat id');
    const seconds = uniqueSeconds();
    const attack = `
      for dir in /work /home/agent /tmp /var/tmp /run /dev/shm /artifacts /logs; do echo mine >$dir/left; done
      echo 'exit 9' >~/.profile; rm -rf bin; ln -s /etc bin; chmod 0 /work/id; mkdir -m 0 /work/closed
      head -c 40000000 /dev/zero >/tmp/full
      (env -i setsid sleep ${seconds} </dev/null >/dev/null 2>&1 &) ; chmod 500 /work`;
    await output(first.runtime, attack);
    const agent = first.runtime.exec({ command: `sleep ${seconds}` }, never);
    await end(first);
    await expect(agent).rejects.toMatchObject({ code: 'runtime_failed' });
    expect(await processesMentioning(seconds)).toEqual([]);
    const second = await begin(spec);
    expect(await output(second.runtime, 'cat id')).toBe(id);
    expect(await output(second.runtime, 'ls -A / /work ~ /tmp /var/tmp /run /dev/shm /artifacts /logs')).not.toContain(
      'left',
    );
    expect(await output(second.runtime, 'cat bin/answer; ls -A ~; echo new >id; head -c 20000000 /dev/zero >big')).toBe(
      'ok\n',
    );
    expect(second.reusable.uses).toBe(2);
    await end(second);
    const third = await begin(spec);
    expect(await output(third.runtime, 'cat id; ls')).toBe(`${id}bin\nid\n`);
    expect(third.reusable.uses).toBe(3);
    expect(events).toEqual(['started', 'reused', 'reused']);
    await reused.close();
    expect(await bench.sessionDirs()).toEqual([]);
    expect(await processesThatMount(bench.stateDir)).toEqual([]);
  });

  it('reaches the proxy of its present session only, with and without restored files', async () => {
    for (const reuse of [{}, { restore: 'none', reset_command: 'true' }]) {
      const { begin, end, reused } = pool(bench, 'bubblewrap');
      const spec = runtimeSpecSchema.parse({ reuse });
      for (const text of ['first', 'second', 'third']) {
        const session = await begin(spec);
        const server = await serve(session.reusable.place.socketPath, text);
        expect(await ask(session.runtime, session.runtime.proxyOrigin)).toBe(`${text}\n`);
        await closed(server);
        await end(session);
      }
      await reused.close();
    }
  });

  it('reaches the egress proxy of its present session only, also in a reset', async () => {
    for (const restore of ['all', 'none']) {
      const { begin, end, reused } = pool(bench, 'bubblewrap');
      const origin = `http://127.0.0.1:${EGRESS_PORT}`;
      const reset = `node -e "fetch('${origin}').then(async (r) => console.log(await r.text()))" >/tmp/reset`;
      const spec = runtimeSpecSchema.parse({
        network: 'proxy',
        reuse: { restore, reset_command: reset },
      });
      for (const uses of [1, 2, 3]) {
        const session = await begin(spec);
        expect(await ask(session.runtime, origin)).toBe(`egress ${uses}\n`);
        expect(await output(session.runtime, 'cat /tmp/reset || :')).toContain(uses === 1 ? 'No such file' : 'reset\n');
        await end(session);
      }
      await reused.close();
    }
  });

  it('keeps services and their files through a reset without restored files, out of reach of agents', async () => {
    const { begin, end, reused } = sandboxes;
    const seconds = uniqueSeconds();
    const spec = runtimeSpecSchema.parse({
      reuse: {
        restore: 'none',
        services: [`echo started >>/tmp/log; touch /tmp/up; exec sleep ${seconds}`],
        health_command: 'test -e /tmp/up',
        reset_command: 'find /work /home/agent -mindepth 1 -delete',
      },
    });
    const first = await begin(spec);
    const service = await servicesWith(seconds);
    expect(service).toHaveLength(1);
    await output(first.runtime, `echo mine >left; kill -9 -1; pkill -9 sleep`);
    await end(first);
    const second = await begin(spec);
    expect(second.reusable.uses).toBe(2);
    expect(await servicesWith(seconds)).toEqual(service);
    expect(await output(second.runtime, 'ls -A; cat /tmp/log')).toBe('started\n');
    await end(second);
    await reused.close();
    expect(await processesMentioning(seconds)).toEqual([]);
  });

  it('has no files that floe left in it, although no files are restored', async () => {
    const { begin, end, reused } = sandboxes;
    const spec = runtimeSpecSchema.parse({ reuse: { restore: 'none', reset_command: 'true' } });
    const first = await begin(spec);
    await output(
      first.runtime,
      'echo mine | tee /work/left >/artifacts/made; cd; mkdir floe-0a; echo answer >floe-0a/session.json; ln -s /work floe-1b',
    );
    const collected = await collect(first.runtime, { maxBytes: 1_000_000, paths: [] }, never);
    expect(collected?.archive?.length).toBeGreaterThan(0);
    await end(first);
    const second = await begin(spec);
    expect(second.reusable.uses).toBe(2);
    expect(await output(second.runtime, 'ls -A ~ /tmp /work')).toBe('/home/agent:\n\n/tmp:\n\n/work:\nleft\n');
    await end(second);
    await reused.close();
  });

  it('lets agents reach a service at a Unix socket, before and after a reset', async () => {
    const { begin, end, reused } = sandboxes;
    const serve = `require('http').createServer((_, r) => r.end(require('fs').readFileSync('/work/data'))).listen('/tmp/s')`;
    const spec = runtimeSpecSchema.parse({
      prepare: [{ type: 'exec', command: 'echo prepared >data' }],
      reuse: { services: [`exec node -e "${serve}"`], health_command: 'test -S /tmp/s' },
    });
    const request = `node -e "require('http').get({ socketPath: '/tmp/s' }, (r) => r.pipe(process.stdout))"`;
    for (const uses of [1, 2]) {
      const session = await begin(spec);
      expect(session.reusable.uses).toBe(uses);
      expect(await output(session.runtime, request)).toBe('prepared\n');
      await output(session.runtime, 'echo forged >data');
      expect(await output(session.runtime, request)).toBe('forged\n');
      await end(session);
    }
    await reused.close();
  });

  it('restarts services with the restored files', async () => {
    const { begin, end, reused } = sandboxes;
    const seconds = uniqueSeconds();
    const spec = runtimeSpecSchema.parse({
      prepare: [{ type: 'exec', command: 'echo prepared >/run/data' }],
      reuse: {
        services: [`cat /run/data >/run/served; exec sleep ${seconds}`],
        health_command: 'grep -q prepared /run/served',
      },
    });
    const first = await begin(spec);
    const before = await servicesWith(seconds);
    await output(first.runtime, 'echo broken >/run/data; echo broken >/run/served');
    await end(first);
    const second = await begin(spec);
    expect(second.reusable.uses).toBe(2);
    expect(await output(second.runtime, 'cat /run/data /run/served')).toBe('prepared\nprepared\n');
    const after = await servicesWith(seconds);
    expect(after).toHaveLength(1);
    expect(after).not.toEqual(before);
    await end(second);
    await reused.close();
  });

  it('is replaced when an agent broke what the reset does not restore', async () => {
    const { begin, end, reused, events } = sandboxes;
    const spec = runtimeSpecSchema.parse({
      prepare: [{ type: 'exec', command: 'echo ok >/tmp/state' }],
      reuse: {
        restore: 'none',
        reset_command: 'rm -rf /work/*',
        health_command: 'grep -q ok /tmp/state',
        timeout_seconds: 10,
      },
    });
    const first = await begin(spec);
    await output(first.runtime, 'echo bad >/tmp/state');
    await end(first);
    const second = await begin(spec);
    expect(second.reusable.uses).toBe(1);
    expect(await output(second.runtime, 'cat /tmp/state')).toBe('ok\n');
    expect(events).toEqual(['started', 'unhealthy', 'started']);
    await end(second);
    await reused.close();
    expect(await bench.sessionDirs()).toEqual([]);
  });
});

it('a local sandbox is reset by the command of the task alone', async () => {
  const bench = await Workbench.open();
  try {
    const { begin, end, reused } = pool(bench, 'local');
    const spec = runtimeSpecSchema.parse({ reuse: { restore: 'none', reset_command: 'rm -rf ./*' } });
    const first = await begin(spec);
    const seconds = uniqueSeconds();
    await output(first.runtime, `echo mine >left; setsid sleep ${seconds} >/dev/null 2>&1 &`);
    await end(first);
    const second = await begin(spec);
    expect(second.reusable.uses).toBe(2);
    expect(await output(second.runtime, 'ls')).toBe('');
    expect(await processesMentioning(seconds)).toEqual([]);
    await end(second);
    const services = runtimeSpecSchema.parse({ reuse: { ...spec.reuse, services: ['sleep 9'] } });
    await expect(begin(services)).rejects.toMatchObject({ details: { path: 'runtime.reuse.services' } });
    await reused.close();
    expect(await bench.sessionDirs()).toEqual([]);
  } finally {
    await bench.close();
  }
});
