import { cancel } from './cancel.mjs';
import { chaos } from './chaos.mjs';
import { clocks } from './clocks.mjs';
import { disk } from './disk.mjs';
import { lies } from './lies.mjs';
import { partition } from './partition.mjs';
import { pause } from './pause.mjs';
import { restart } from './restart.mjs';
import { slowClients } from './slow-clients.mjs';
import { ssrf } from './ssrf.mjs';
import { weights } from './weights.mjs';

/** In the order in which they are run. */
export const SUITES = [pause, partition, chaos, disk, clocks, lies, slowClients, cancel, restart, ssrf, weights];
