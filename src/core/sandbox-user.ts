/** The user and group id that every sandboxed process sees itself as, whatever it is on the host. */
export const SANDBOX_UID = 1000;
