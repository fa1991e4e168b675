"""What model servers say of themselves, made again from their documents and source."""

VLLM_METRICS = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0
vllm:cache_config_info{block_size="16",cache_dtype="fp8",enable_prefix_caching="True",engine="0",\
gpu_memory_utilization="0.8",kv_cache_size_tokens="262144"} 1.0
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 400.0
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 300.0
"""
VLLM_SETTINGS: dict[str, dict[str, object]] = {
    "model_config": {"dtype": "torch.bfloat16", "quantization": "awq", "enforce_eager": False},
    "scheduler_config": {
        "enable_chunked_prefill": True,
        "max_num_batched_tokens": 2048,
        "max_num_seqs": 256,
        "policy": "priority",
    },
    "compilation_config": {"cudagraph_capture_sizes": [1, 2, 512, 4]},
    "parallel_config": {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"},
    "device_config": {"device": "cuda"},
}

SGLANG = {
    "model_path": "Qwen/Qwen3-8B-AWQ",
    "dtype": "auto",
    "device": "cuda",
    "quantization": "awq_marlin",
    "kv_cache_dtype": "fp8_e4m3",
    "context_length": None,
    "mem_fraction_static": 0.8,
    "max_running_requests": None,
    "max_total_num_tokens": 131072,
    "chunked_prefill_size": 8192,
    "disable_radix_cache": False,
    "disable_cuda_graph": False,
    "tp_size": 2,
    "pp_size": 1,
    "speculative_algorithm": "EAGLE3",
    "speculative_num_draft_tokens": 4,
    "api_key": "sk-secret",
    "internal_states": [
        {"effective_max_running_requests_per_dp": 64, "memory_usage": {"token_capacity": 131072}},
        {"effective_max_running_requests_per_dp": 64, "memory_usage": {"token_capacity": 131072}},
    ],
    "version": "0.5.5",
}

TGI = {
    "model_id": "meta-llama/Llama-3.1-8B-Instruct",
    "max_concurrent_requests": 128,
    "max_best_of": 2,
    "max_stop_sequences": 4,
    "max_input_tokens": 1024,
    "max_total_tokens": 2048,
    "validation_workers": 2,
    "max_client_batch_size": 4,
    "router": "text-generation-router",
    "version": "3.3.6",
}

STEP = {
    "gpuMemUsage": 76665782272,
    "iter": 154,
    "kvCacheStats": {"maxNumBlocks": 101256, "tokensPerBlock": 32, "reusedBlocks": 30, "missedBlocks": 10},
    "maxNumActiveRequests": 2048,
    "numActiveRequests": 1,
}

TRITON = b"""\
# TYPE nv_inference_request_success counter
nv_inference_request_success{model="llama",version="1"} 41
# TYPE nv_gpu_memory_total_bytes gauge
nv_gpu_memory_total_bytes{gpu_uuid="GPU-a"} 80000000000
nv_gpu_memory_total_bytes{gpu_uuid="GPU-b"} 80000000000
nv_gpu_memory_used_bytes{gpu_uuid="GPU-a"} 40000000000
nv_gpu_memory_used_bytes{gpu_uuid="GPU-b"} 60000000000
nv_trt_llm_request_metrics{model="llama",request_type="max",version="1"} 512
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="tokens_per",model="llama",version="1"} 64
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max",model="llama",version="1"} 6239
"""
