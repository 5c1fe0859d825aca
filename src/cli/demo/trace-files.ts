import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { DemoRun } from './run.ts';

/** `traces.jsonl`: one trace per line. Beside it each session's whole result, readable with any JSON viewer. */
export async function writeTraces(dir: string, run: DemoRun): Promise<void> {
  await mkdir(dir, { recursive: true });
  const lines: string[] = [];
  for (const result of run.results) {
    const name = `${run.nameOf(result.task_id)}-${result.sample_index}`;
    await writeFile(join(dir, `${name}.json`), JSON.stringify(result));
    for (const trace of result.trajectory?.traces ?? []) {
      lines.push(JSON.stringify({ session_id: result.session_id, task_id: result.task_id, ...trace }));
    }
  }
  await writeFile(join(dir, 'traces.jsonl'), `${lines.join('\n')}\n`);
}
