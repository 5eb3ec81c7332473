package management

import "testing"

func TestInHTTP(t *testing.T) {
	for in, want := range map[string]string{
		"start it with `sandboxctl start dev`":               "start it with `POST /api/v1/instances/dev:start`",
		"`sandboxctl ls` lists the instances there are":      "`GET /api/v1/instances` lists the instances there are",
		"`sandboxctl logs dev`, then `sandboxctl doctor`":    "`GET /api/v1/instances/dev/logs`, then `GET /api/v1/host`",
		"cut its power with `sandboxctl stop --force dev`":   "cut its power with `POST /api/v1/instances/dev:stop?force=true`",
		"`sandboxctl ops show 0190b2a4-0000-7000-8000-00aa`": "`GET /api/v1/operations/0190b2a4-0000-7000-8000-00aa`",
		"`sandboxctl orphans ls`":                            "`GET /api/v1/orphans`",
		"`sandboxctl rm dev`":                                "`DELETE /api/v1/instances/dev`",
		"`make images` builds the shipped ones":              "`make images` builds the shipped ones",
		"`sandboxctl start`":                                 "`POST /api/v1/instances/{ref}:start`",
		"`sandboxctl logs NAME`":                             "`GET /api/v1/instances/{ref}/logs`",
		"`sandboxctl ls dev`":                                "`sandboxctl ls dev`",
		"`sandboxctl start --force dev`":                     "`sandboxctl start --force dev`",
	} {
		if got := inHTTP(in); got != want {
			t.Errorf("%s\n got %s\nwant %s", in, got, want)
		}
	}
}
