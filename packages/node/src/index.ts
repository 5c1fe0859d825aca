/** The exports of `@floe-rl/node` for other packages. */
export { openSessionEgress, type SessionEgress } from './gateway/egress/session-egress.ts';
export { type GatewayConfigInput, gatewayConfigSchema } from './gateway/node/config.ts';
export type { Gateway } from './gateway/node/gateway.ts';
export { machineMemoryMb } from './gateway/node/machine-memory.ts';
export { createTaskCheck, importModule } from './gateway/node/plugins.ts';
export type { DispatchPolicy } from './gateway/node/stage-pools.ts';
export { startTracedGateway } from './gateway/node/traced-gateway.ts';
export { startProcesses } from './gateway/processes/processes.ts';
export { removeStateDir } from './gateway/recovery/state-dir.ts';
export { Sandboxes, StartLimits } from './gateway/session/sandbox.ts';
export { defineHarness, type HarnessDefinition } from './harnesses/define.ts';
export type {
  AgentFeature,
  HarnessAdapter,
  HarnessInstall,
  HarnessReport,
  HarnessVerdict,
  Launch,
  LaunchContext,
} from './harnesses/harness.ts';
export { harnessInstalls } from './harnesses/install/catalog.ts';
export {
  harnessInstallDir,
  harnessStatus,
  installedBytes,
  installHarness,
  installLocked,
  lockedStatus,
} from './harnesses/install/install.ts';
export { MATH_VERIFY, mathVerifyPython } from './harnesses/install/math-verify.ts';
export { findHarness, harnessRegistry } from './harnesses/registry.ts';
