package engine_test

import "os"

func touch(path string) error { return os.WriteFile(path, nil, 0o600) }
