package management

import (
	"errors"
	"io"
	"net/http"
	"time"

	managementv1 "agentic-sandbox.aiwg.io/sandbox/api/management/v1"
)

const (
	defaultTail = 1000
	maxTail     = 100_000
)

// GetInstanceConsole sends the end of the console and, if asked, what the
// guest writes from then on.
func (a *api) GetInstanceConsole(w http.ResponseWriter, r *http.Request, ref string, params managementv1.GetInstanceConsoleParams) {
	tail, follow := defaultTail, params.Follow != nil && *params.Follow
	if params.Tail != nil {
		tail = *params.Tail
	}
	if tail < 0 || tail > maxTail {
		a.fail(w, r, invalid{{Field: "tail", Code: "parameter.range",
			Message: "want a number from 0 to 100000"}}.or(codeInvalidParameter))
		return
	}
	view, err := a.find(r, ref)
	if err != nil {
		a.fail(w, r, err)
		return
	}
	if follow {
		release, err := a.openStream(r)
		if err != nil {
			a.fail(w, r, err)
			return
		}
		defer release()
	}
	console, err := a.Guests.Console(r.Context(), view.ID.String(), follow, tail)
	if err != nil {
		a.fail(w, r, err)
		return
	}
	defer console.Close()
	h := w.Header()
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)
	if err := a.copyLive(w, console); err != nil {
		a.Log.DebugContext(r.Context(), "console ended", "error", err)
	}
}

// copyLive hands on every piece when it comes, each within the time that a
// client may take to read it.
func (a *api) copyLive(w http.ResponseWriter, from io.Reader) error {
	rc := http.NewResponseController(w)
	_ = rc.Flush() // a writer that has no buffer needs none of this
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			_ = rc.SetWriteDeadline(time.Now().Add(a.Stall))
			if _, err := w.Write(buf[:n]); err != nil {
				return err
			}
			_ = rc.Flush()
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
