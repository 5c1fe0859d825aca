// Runs the cheats with Apptainer as the user of this process. The only argument is the setup as JSON. Prints the rows, or the reason why
// Apptainer does not work, as JSON.
import { execFileSync } from 'node:child_process';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Progress } from '../runner/progress.ts';
import { runApptainerHere, type Setup } from './backends.ts';

const setup = JSON.parse(process.argv[2] ?? '') as Setup;
const progress = new Progress();
// In the user namespace of the sandbox, only files of this user can be replaced.
const image = join(tmpdir(), 'image');
execFileSync('cp', ['-R', '-P', setup.image, image]);
const show = (left: number): void => progress.show(`apptainer: ${left} sessions left`);
process.stdout.write(JSON.stringify(await runApptainerHere({ ...setup, image, stateDir: tmpdir() }, show)));
