package a2a

import (
	"net/http"
	"strconv"
	"time"

	"github.com/gorilla/mux"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/task"
)

// artifact downloads one artifact, whole. It is ours, not A2A's: no version
// and no extension is negotiated. While the command runs it is what there is
// so far; then there is no length, since more may come.
func (s *surface) artifact(w http.ResponseWriter, r *http.Request) {
	agent, f := s.agent(r)
	if f != nil {
		s.refuse(w, r, f)
		return
	}
	ctx := r.Context()
	c := &call{surface: s, agent: agent, caller: s.cfg.Caller(ctx)}
	if f := c.caller.allow(ctx); f != nil {
		s.refuse(w, r, f)
		return
	}
	id, name := mux.Vars(r)["task"], mux.Vars(r)["artifact"]
	if _, f := c.find(ctx, id, task.View{Inline: -1}); f != nil {
		s.refuse(w, r, f)
		return
	}
	size, complete, err := s.cfg.Store.ArtifactSize(ctx, c.caller.scope(), id, name)
	if err != nil {
		f := s.explain(ctx, "read an artifact", err)
		if f.reason == "TASK_NOT_FOUND" {
			f = errNoResource()
		}
		s.refuse(w, r, f)
		return
	}
	h := w.Header()
	// The guest wrote it: no browser may take it for a page of ours.
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Content-Disposition", "attachment")
	h.Set("Content-Security-Policy", "sandbox")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	if complete {
		h.Set("Content-Length", strconv.FormatUint(size, 10))
	}
	if r.Method == http.MethodHead {
		return
	}
	control := http.NewResponseController(w)
	for offset := uint64(0); offset < size; {
		data, err := s.cfg.Store.ReadArtifact(ctx, c.caller.scope(), id, name, offset)
		if err != nil || len(data) == 0 {
			if ctx.Err() == nil {
				s.cfg.Log.ErrorContext(ctx, "cannot read an artifact", "task", id, "error", err)
			}
			panic(http.ErrAbortHandler) // a short answer must not look whole
		}
		_ = control.SetWriteDeadline(time.Now().Add(s.cfg.Limits.Stall)) // as in sse.write
		if _, err := w.Write(data[:min(uint64(len(data)), size-offset)]); err != nil {
			return
		}
		offset += uint64(len(data))
	}
}
