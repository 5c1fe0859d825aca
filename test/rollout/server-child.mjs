// A rollout server in a process of its own, to be killed. Arguments: directory. Prints its URL.
import { join } from 'node:path';
import { systemClock } from '../../dist/core/clock.js';
import { createRolloutServer } from '../../dist/rollout/index.js';
import { DirectoryBlobStore, SqliteStore } from '../../dist/store/index.js';

const directory = process.argv[2];
const server = await createRolloutServer(
  { port: 0 },
  {
    store: SqliteStore.open(join(directory, 'floe.db')),
    blobs: await DirectoryBlobStore.open(join(directory, 'blobs'), systemClock),
    clock: systemClock,
    validateTask: () => {},
  },
);
const { url } = await server.listen();
process.stdout.write(`${url}\n`);
