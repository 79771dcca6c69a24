/**
 * Trainmaster's plug-ins for YARN's ResourceManager.
 *
 * <p>Three classes are named in {@code yarn-site.xml}: {@link io.trainmaster.yarn.SidecarBridge} exchanges a snapshot for a
 * plan, {@link io.trainmaster.yarn.PlanAllocator} keeps allocations to it, {@link io.trainmaster.yarn.AdmissionRule} refuses
 * jobs at submission. The others serve them. Without a plan in force everything is stock CapacityScheduler.
 */
package io.trainmaster.yarn;
