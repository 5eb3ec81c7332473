package a2a

import (
	"net/http"
	"strings"
)

// prefix03 is what the paths of 0.3 begin with, below an agent's address.
const prefix03 = "/v1"

// path03 reports whether a path below /agents/{id} is one of 0.3. Only 0.3 is
// spoken there.
func path03(path string) bool {
	_, rest, _ := strings.Cut(strings.TrimPrefix(path, "/agents/"), "/")
	return strings.HasPrefix("/"+rest, prefix03+"/")
}

// routes03 adds HTTP+JSON of A2A 0.3. The operations are those of 1.0; they
// read and answer in the version of the request.
func (s *surface) routes03(at func(path string, m methods)) {
	s.routesSend(at, prefix03)
	at(prefix03+"/tasks", methods{http.MethodGet: s.rest(restList)})
	at(prefix03+"/tasks/{task:[^/:]+}:cancel", methods{http.MethodPost: s.rest(restCancel)})
	subscribe := s.restStream(restSubscribe)
	at(prefix03+"/tasks/{task:[^/:]+}:subscribe", methods{http.MethodGet: subscribe, http.MethodPost: subscribe})
	at(prefix03+"/tasks/{task:[^/:]+}", methods{http.MethodGet: s.rest(restGet)})
	s.routesPush(at, prefix03)
	at(prefix03+"/card", methods{http.MethodGet: s.rest(restExtendedCard)})
}
