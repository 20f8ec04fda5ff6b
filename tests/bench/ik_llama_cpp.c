/*
 * ik_llama.cpp for the benchmark: what is called there, with plain arguments, because the
 * structures of its llama.h change often. ik_llama_cpp.py compiles this file with that header.
 */
#include <stdlib.h>

#include "llama.h"

typedef struct Engine {
    struct llama_model *model;
    struct llama_context *context;
} Engine;

static void say_nothing(enum ggml_log_level level, const char *text, void *data)
{
    (void)level;
    (void)text;
    (void)data;
}

void engine_close(Engine *engine)
{
    if (engine->context)
        llama_free(engine->context);
    if (engine->model)
        llama_free_model(engine->model);
    free(engine);
}

/* Loads a GGUF file. With `repack`, weights are laid out anew for this processor, as by -rtr 1.
 * Everything else is a default of ik_llama.cpp. Returns NULL if the file is refused. */
Engine *engine_open(const char *path, int repack, int positions, int threads)
{
    Engine *engine = calloc(1, sizeof *engine);
    if (!engine)
        return NULL;
    llama_log_set(say_nothing, NULL);
    llama_backend_init();
    struct llama_model_params of_model = llama_model_default_params();
    of_model.repack_tensors = repack;
    of_model.use_mmap = !repack; /* as its programs do: mapped weights cannot be laid out anew */
    engine->model = llama_model_load_from_file(path, of_model);
    struct llama_context_params of_context = llama_context_default_params();
    of_context.n_ctx = (uint32_t)positions;
    of_context.n_batch = of_context.n_ubatch = 512;
    of_context.n_threads = of_context.n_threads_batch = (uint32_t)threads;
    if (engine->model)
        engine->context = llama_init_from_model(engine->model, of_context);
    if (engine->context)
        return engine;
    engine_close(engine);
    return NULL;
}

int engine_vocabulary(const Engine *engine) { return llama_n_vocab(engine->model); }

void engine_clear(Engine *engine) { llama_kv_cache_clear(engine->context); }

/* Removes the tokens from a position on. Returns 0 if it could not. */
int engine_truncate(Engine *engine, int position)
{
    return llama_kv_cache_seq_rm(engine->context, 0, position, -1);
}

/* Runs at most 512 tokens from a position on. Returns 0 if it could. */
int engine_run(Engine *engine, int32_t *ids, int count, int position)
{
    return llama_decode(engine->context, llama_batch_get_one(ids, count, position, 0));
}

/* The logits after the last token. */
const float *engine_logits(const Engine *engine)
{
    return llama_get_logits_ith(engine->context, -1);
}
