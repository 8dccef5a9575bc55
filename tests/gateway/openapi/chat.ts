// What a program says with a client that openapi-typescript made of the document: it has to compile, and to chat.
import createClient from "openapi-fetch";
import type { paths } from "./schema.d.ts";

declare const process: { argv: string[] };
const [baseUrl, key] = process.argv.slice(2);
const client = createClient<paths, "application/json">({ baseUrl, headers: { authorization: `Bearer ${key}` } });
const asked = { model: "tiny", messages: [{ role: "user" as const, content: "What is the capital of France?" }] };

const { data, error } = await client.POST("/v1/chat/completions", { body: asked });
if (error) throw new Error(error.error.message);
console.log(data.choices[0].message.content);

const refused = await client.POST("/v1/chat/completions", { body: { ...asked, model: "other" } });
console.log(refused.error?.error.code);

const listed = await client.GET("/v1/models");
console.log(listed.data?.data.map((model) => model.id).join(" "));
