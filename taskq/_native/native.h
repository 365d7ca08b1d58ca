/* What the files of the extension share: the module's state, and how errors are carried about.

   Nothing here is static and mutable: each interpreter that imports the module has a state of its
   own, and that state holds types and interned names alone. All else is the caller's. */

#ifndef TASKQ_NATIVE_H
#define TASKQ_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#if PY_VERSION_HEX < 0x030B0000 || PY_VERSION_HEX >= 0x030F0000
#error "CPython 3.11 to 3.14"
#endif
#ifdef Py_GIL_DISABLED
#error "these functions rely on the GIL"
#endif

/* Raised by hand whenever what these files do, or what Python gives them, changes. A build whose
   number is not that of ``taskq/_native/__init__.py`` is of other sources, and is not used. */
#define TASKQ_NATIVE_VERSION 11
/* Version and digest of these files, for reports; build.py sets it. */
#ifndef TASKQ_NATIVE_BUILD
#define TASKQ_NATIVE_BUILD "unknown"
#endif

/* Attributes and methods that are looked up by name, once for each job. */
#define TASKQ_NAMES(X)                                                                             \
    X(_app) X(_callbacks) X(_children_size) X(_latest) X(_line) X(_requests) X(_tag) X(_task)      \
    X(_thread_id) X(abandoned) X(app) X(asleep) X(body_at) X(cancelling) X(children) X(current)    \
    X(delivery) X(done) X(duplicate) X(encode) X(flush) X(flush_soon) X(is_due) X(loop) X(low)     \
    X(lsn) X(mailbox) X(outcomes) X(packs) X(popleft) X(refill) X(remove_done_callback) X(replace) \
    X(scheduled) X(set_exception) X(set_result) X(since) X(stored_payload) X(task) X(usable)

/* Bytes that the CRC takes at a time. */
enum { CRC_STEP = 8 };

/* Slots of objects that are made or looked at once for each job. */
enum {
    JOB_DELIVERY, JOB_APP, JOB_PACKS, JOB_CHILDREN, JOB_CHILDREN_SIZE, SLOT_DELIVERY, SLOT_SINCE,
    SLOT_ABANDONED, HANDLE_APP, HANDLE_TASK, HANDLE_TAG, HANDLE_LSN, HANDLE_DUPLICATE, PLACES
};

/* Where a slot stands in objects of the class that has this version; 0: of none. */
typedef struct {
    unsigned int version;
    Py_ssize_t offset;
} Place;

typedef struct {
    Place places[PLACES];
    uint32_t crc[CRC_STEP][256]; /* filled once, then only read */
    PyObject *zero, *loop_keyword;
    PyObject *future_type; /* once it was needed */
    PyTypeObject *rest_type, *encoder_type, *decoder_type;
#define X(name) PyObject *name;
    TASKQ_NAMES(X)
#undef X
} State;

static inline State *
state_of(PyObject *module)
{
    return (State *)PyModule_GetState(module);
}

/* Take the error that is set; a new reference to the exception, with its traceback. */
static inline PyObject *
take_error(void)
{
#if PY_VERSION_HEX >= 0x030C0000
    return PyErr_GetRaisedException();
#else
    PyObject *kind, *error, *trace;
    PyErr_Fetch(&kind, &error, &trace);
    PyErr_NormalizeException(&kind, &error, &trace);
    if (error != NULL && trace != NULL) {
        (void)PyException_SetTraceback(error, trace);
    }
    Py_XDECREF(kind);
    Py_XDECREF(trace);
    return error;
#endif
}

/* Raise an exception as it was; steals the reference. */
static inline void
raise_error(PyObject *error)
{
#if PY_VERSION_HEX >= 0x030C0000
    PyErr_SetRaisedException(error);
#else
    PyErr_Restore(Py_NewRef((PyObject *)Py_TYPE(error)), error, PyException_GetTraceback(error));
#endif
}

/* module.c */
int taskq_find_place(PyTypeObject *type, PyObject *name, Place *place);

/* Return where an object keeps an attribute that is a slot of its class; NULL if it is none, and no
   error then. A class has another version once anything of it was changed: so it is for CPython's own
   byte code of such an access. */
static inline PyObject **
slot_of(State *state, PyObject *object, int number, PyObject *name)
{
    PyTypeObject *type = Py_TYPE(object);
    Place *place = &state->places[number];
    if ((place->version == 0 || place->version != type->tp_version_tag)
        && !taskq_find_place(type, name, place)) {
        return NULL;
    }
    return (PyObject **)(void *)((char *)object + place->offset);
}

/* Set an attribute, as ``PyObject_SetAttr``. */
static inline int
set_slot(State *state, PyObject *object, int number, PyObject *name, PyObject *value)
{
    PyObject **slot = slot_of(state, object, number, name);
    if (slot == NULL) return PyObject_SetAttr(object, name, value);
    PyObject *before = *slot;
    *slot = Py_NewRef(value);
    Py_XDECREF(before);
    return 0;
}

/* Read an attribute, as ``PyObject_GetAttr``. */
static inline PyObject *
get_slot(State *state, PyObject *object, int number, PyObject *name)
{
    if (Py_TYPE(object)->tp_getattro == PyObject_GenericGetAttr) {
        PyObject **slot = slot_of(state, object, number, name);
        if (slot != NULL && *slot != NULL) return Py_NewRef(*slot);
    }
    return PyObject_GetAttr(object, name);
}

/* slots.c */
extern PyType_Spec taskq_rest_spec;
PyObject *taskq_run_jobs(PyObject *module, PyObject *const *args, Py_ssize_t count);

/* codecs.c */
extern PyType_Spec taskq_decoder_spec, taskq_encoder_spec;
PyObject *taskq_encode(PyObject *encoder, PyObject *args, PyObject *kwargs);
/* Return the values of a payload by name. NULL: ``slowly`` is (args, kwargs), found by the slow
   road, or NULL, too, with an error set. */
PyObject *taskq_decode(PyObject *decoder, PyObject *payload, PyObject **slowly);

/* calls.c */
PyObject *taskq_submit(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *taskq_new_handle(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *taskq_answer_all(PyObject *module, PyObject *pairs);

/* columns.c */
void taskq_fill_crc_table(State *state);
PyObject *taskq_born_records(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *taskq_claimed(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *taskq_plain_records(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *taskq_take(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *taskq_unclaimed(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *taskq_whole_records(PyObject *module, PyObject *const *args, Py_ssize_t count);

#endif
