import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { BatchStreamView, TaskRequest } from '@floe-rl/core/schema';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { repositoryRoot } from '../../../../../tools/repository.ts';
import { startTestService, type TestService } from '../../../src/testing/index.ts';
import { CLI, type Exit, run } from '../../commands/machine.ts';

const EXAMPLE = join(repositoryRoot(), 'examples', 'environments', 'groups.yaml');

/** Files in the form of ROLL's: the second one takes its environments from the first. */
const SHARED = `
turns: 10
custom_env:
  Boxes:
    env_type: sokoban
    max_steps: \${turns}
    env_config:
      dim_room: [6, 6]
      num_boxes: 1
      max_steps: \${turns}
`;
const PIPELINE = `
defaults:
  - ../config/shared@_here_
seed: 3
turns: 6
rollout_batch_size: 8
track:
  key: \${oc.env:TRACK_KEY}
train_env_manager: { num_env_groups: 2, group_size: 4, tags: [Boxes], num_groups_partition: [2] }
custom_envs:
  Boxes:
    \${custom_env.Boxes}
`;

let service: TestService;
let dir: string;
beforeAll(async () => {
  service = await startTestService();
  dir = await mkdtemp(join(tmpdir(), 'floe-groups-'));
  await mkdir(join(dir, 'config'));
  await mkdir(join(dir, 'runs'));
  await writeFile(join(dir, 'config', 'shared.yaml'), SHARED);
  await writeFile(join(dir, 'runs', 'boxes.yaml'), PIPELINE);
});
afterAll(async () => {
  await service.close();
  await rm(dir, { recursive: true, force: true });
});

const floe = (...words: string[]): Promise<Exit> =>
  run([process.execPath, CLI, ...words], { FLOE_URL: service.url, FLOE_HOME: dir, FLOE_TOKEN: '' });

/** Returns the tasks among the lines that a command has printed. */
const tasksIn = ({ output }: Exit): TaskRequest[] =>
  output
    .split('\n')
    .filter((line) => line.startsWith('{'))
    .map((line) => JSON.parse(line) as TaskRequest);

describe('floe env tasks', () => {
  it('prints the tasks of environment groups from any number on', async () => {
    const all = tasksIn(await floe('env', 'tasks', EXAMPLE, '--count', '12'));
    expect(all).toHaveLength(12);
    expect(all[9]).toMatchObject({
      num_samples: 4,
      environment: { type: 'sokoban', config: { max_steps: 20 }, seed: (all[1]?.environment?.seed ?? 0) + 1 },
      metadata: { group: { tag: 'Sokoban6', group: 1, episode: 1 } },
    });
    expect(tasksIn(await floe('env', 'tasks', EXAMPLE, '--from', '9', '--count', '1'))).toEqual([all[9]]);
  });

  it('prints no more tasks than an evaluation has', async () => {
    const tasks = tasksIn(await floe('env', 'tasks', EXAMPLE, '--split', 'val', '--count', '100'));
    expect(tasks.map(({ environment }) => environment?.type)).toEqual([
      ...['sokoban', 'sokoban', 'frozen_lake', 'frozen_lake'],
    ]);
  });

  it('reads a configuration of ROLL with the files of its defaults, and says what has no effect', async () => {
    const { code, output } = await floe('env', 'tasks', join(dir, 'runs', 'boxes.yaml'));
    expect({ code, output }).toMatchObject({ code: 0 });
    expect(tasksIn({ code, output })[0]).toMatchObject({
      num_samples: 4,
      environment: { type: 'sokoban', config: { max_steps: 6, success_reward: 10 } },
    });
    expect(output).toContain("track: belongs to ROLL's trainer");
  });

  it('names the file and the field that are wrong', async () => {
    const path = join(dir, 'wrong.yaml');
    await writeFile(path, 'environments: {}\ntrain: { num_env_groups: 1, tags: [Lost] }\n');
    const { code, output } = await floe('env', 'tasks', path);
    expect(code).not.toBe(0);
    expect(output).toContain('train.tags: there is no environment Lost');
    await writeFile(path, 'defaults: [{ a: b }]\ntrain_env_manager: { tags: [A] }\n');
    expect((await floe('env', 'tasks', path)).output).toContain('defaults.0: must be a file');
  });
});

describe('floe batch create --environments', () => {
  it('creates the stream of a split, with the other fields of a file', async () => {
    const fields = join(dir, 'fields.yaml');
    await writeFile(fields, 'batch_id: boxes\nmax_staleness: 2\n');
    const options = ['--environments', EXAMPLE, '--split', 'train', '--json'];
    for (let repeat = 0; repeat < 2; repeat++) {
      const created = await floe('batch', 'create', fields, ...options);
      expect(created.code).toBe(0);
      expect(JSON.parse(created.output) as BatchStreamView).toMatchObject({ batch_id: 'boxes', row_count: null });
    }
    expect((await floe('batch', 'end', 'boxes')).code).toBe(0);
  });

  it('needs a file of one kind', async () => {
    expect((await floe('batch', 'create')).output).toContain('name a file');
    expect((await floe('batch', 'create', '--environments', EXAMPLE, '--rows', EXAMPLE)).output).toContain('--rows');
  });
});
