/** `floe/schema`: every object of the API as a zod schema, and its type. */
export * from '@floe-rl/client/schema';
