// `npm start`: from a fresh clone to a finished demo.
import { join } from 'node:path';
import { ROOT, run, setUp } from './setup.mjs';

setUp();
run(process.execPath, [join(ROOT, 'dist', 'cli', 'main.js'), 'demo', ...process.argv.slice(2)]);
