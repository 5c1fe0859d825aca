// Installs the S3 server that the tests of the blob store run against, in a pinned version: versitygw, built from its Go module.
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync } from 'node:fs';
import { homedir } from 'node:os';
import { join } from 'node:path';

const MODULE = 'github.com/versity/versitygw/cmd/versitygw@v1.8.0';
const FOLDER = join(homedir(), '.cache', 'floe', 'tools');
const PROGRAM = join(FOLDER, 'versitygw');

if (existsSync(PROGRAM)) {
  console.log(`${PROGRAM} is there`);
} else {
  mkdirSync(FOLDER, { recursive: true });
  const { status, error } = spawnSync('go', ['install', MODULE], {
    stdio: 'inherit',
    // A newer Go is fetched by Go itself when the module asks for one.
    env: { ...process.env, GOBIN: FOLDER },
  });
  if (status !== 0) {
    console.error(
      `${MODULE} could not be built${error ? `: ${error.message}` : ''}; it needs Go from https://go.dev/dl/`,
    );
    process.exit(1);
  }
  console.log(`installed ${PROGRAM}`);
}
